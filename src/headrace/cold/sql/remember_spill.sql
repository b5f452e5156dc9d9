INSERT INTO cold_spills (id) VALUES (%(id)s)
