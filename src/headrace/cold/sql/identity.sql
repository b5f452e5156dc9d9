SELECT id::text FROM cold_identity
