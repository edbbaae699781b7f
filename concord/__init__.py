"""Annotate document collections: sentences, tokens, dependency trees and entities with a document memory."""
