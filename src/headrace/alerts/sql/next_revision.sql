UPDATE alert_revision SET revision = revision + 1
