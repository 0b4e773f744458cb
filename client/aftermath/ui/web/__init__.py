"""The observer: runs on a web page, from the chain and from members' events."""
