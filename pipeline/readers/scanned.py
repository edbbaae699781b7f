"""What the planner learns of a record."""
