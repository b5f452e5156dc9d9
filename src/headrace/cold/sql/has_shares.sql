-- Whether a project or organisation shares out a quota, or did and shares are left.
SELECT EXISTS (SELECT 1 FROM quotas WHERE org <> '' AND env = '' AND name = ANY(%(names)s))
  OR EXISTS (SELECT 1 FROM quota_shares)
