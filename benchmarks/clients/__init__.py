"""The peers, each a script that the peers' own Python runs: it imports nothing of this project.

    python SCRIPT.py URL PROMPTS.jsonl FIELDS.json IN_FLIGHT FOLDER

Each writes FOLDER/answers.json: `answers`, how many completions it holds at its end.
"""
