UPDATE leases SET until = '-infinity' WHERE name = %(name)s AND holder = %(holder)s AND token = %(token)s
