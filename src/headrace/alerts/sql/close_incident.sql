UPDATE alert_incidents SET resolved_at = to_timestamp(%(at_ms)s / 1000.0), reason = %(reason)s WHERE id = %(id)s
