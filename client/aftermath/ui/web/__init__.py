"""Runs on a web page: what the chain and files of events say of them, for any visitor.

Owns the server, its page (files in `page/`, sent as they are) and what it remembers of runs while it is up. It reads
only, holds no key, and knows nothing that the chain or the files do not say.
"""
