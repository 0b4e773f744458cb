"""The data room: token files and how to make them. Knows nothing of any other room but the base error."""
