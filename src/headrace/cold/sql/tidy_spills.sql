DELETE FROM cold_spills WHERE at < now() - interval '1 hour'
