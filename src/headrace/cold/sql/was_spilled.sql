SELECT 1 FROM cold_spills WHERE id = %(id)s
