"""What comes from outside: values that are checked, files and text that are not trusted."""
