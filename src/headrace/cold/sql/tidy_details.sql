-- Skips those that somebody is about to count up.
DELETE FROM cold_details WHERE ctid IN (
  SELECT ctid FROM cold_details WHERE waiting = 0 LIMIT 1000 FOR UPDATE SKIP LOCKED
)
