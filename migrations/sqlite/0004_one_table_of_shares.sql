-- All shares are in `shares_by_name` now. `grantee_id` is the user who has accepted the share; without one it is an offer, which
-- gives no access. `declined_at` is the time at which the grantee declined the offer or left.
ALTER TABLE shares_by_name ADD COLUMN grantee_id INTEGER REFERENCES users (user_id) ON DELETE SET NULL;
ALTER TABLE shares_by_name ADD COLUMN declined_at INTEGER;

CREATE INDEX shares_by_name_by_grantee ON shares_by_name (grantee_id);

-- What gave access before is accepted. A row of the owner takes precedence over one of the operator.
INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at)
SELECT users.name, shares.owner_id, shares.role, shares.created_at
FROM shares JOIN users ON users.user_id = shares.grantee_id
WHERE true ON CONFLICT (grantee_name, owner_id) DO NOTHING;

UPDATE shares_by_name SET grantee_id = users.user_id FROM users
WHERE users.name = shares_by_name.grantee_name AND users.user_id <> shares_by_name.owner_id;

DROP TABLE shares;

-- Milliseconds since 1970 in UTC.
ALTER TABLE departed_users ADD COLUMN departed_at INTEGER NOT NULL DEFAULT 0;
