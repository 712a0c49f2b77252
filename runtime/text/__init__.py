"""Text to ids and back: tokens in order, chats through their template, ids checked."""
