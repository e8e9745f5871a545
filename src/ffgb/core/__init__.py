"""The mathematics: functions, families, losses, steps, oracles, geometry, questions.  No messages and no files."""
