"""The bundled encoder, made from the 4-bit file of multilingual-e5-small."""
