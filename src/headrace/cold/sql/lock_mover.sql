SELECT queue_id FROM cold_movers WHERE queue_id = %(queue_id)s FOR UPDATE
