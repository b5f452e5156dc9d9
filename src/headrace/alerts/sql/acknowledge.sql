UPDATE alert_incidents
SET acknowledged_at = now(), acknowledged_by = %(by)s
WHERE id = %(id)s AND acknowledged_at IS NULL AND resolved_at IS NULL
RETURNING id
