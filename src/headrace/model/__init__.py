"""What crosses rooms: names, jobs, events. Standard library only; imports no other room."""
