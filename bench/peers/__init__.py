"""Other queues, used as their own users would use them."""
