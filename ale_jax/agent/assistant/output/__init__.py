"""What a session looks like from outside: to a person, to a program, and as a file."""
