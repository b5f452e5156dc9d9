"""Other queues, used as documented for their users."""
