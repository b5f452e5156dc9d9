-- What happened to servers of late (tables of the cold tier): name, and what is known of it.
SELECT e.server || ' of shard ' || e.shard || ' ' || e.kind, max(e.description) || ' Accepted jobs missing: ' ||
  coalesce(sum(l.missing), 0) || '. See headrace tiers events.'
FROM server_events e LEFT JOIN server_event_losses l ON l.event_id = e.id
WHERE e.noticed_at > now() - make_interval(secs => %(within_s)s)
GROUP BY 1
