SELECT count(*) FROM cold_quarantine
