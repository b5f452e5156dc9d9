-- Shared: nobody takes the lease over until this transaction ends.
SELECT 1 FROM leases WHERE name = %(name)s AND holder = %(holder)s AND token = %(token)s FOR SHARE
