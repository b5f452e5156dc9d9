SELECT source, detail FROM alert_problems
WHERE reported_at > clock_timestamp() - %(within_s)s * interval '1 second'
ORDER BY source
