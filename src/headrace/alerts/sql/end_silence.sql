UPDATE alert_silences SET ends_at = greatest(now(), starts_at + interval '1 microsecond')
WHERE id = %(id)s AND ends_at > now()
RETURNING id
