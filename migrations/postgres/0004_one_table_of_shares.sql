-- All shares are in `shares_by_name` now. `grantee_id` is the user who has accepted the share; without one it is an offer, which
-- gives no access. `declined_at` is the time at which the grantee declined the offer or left.
ALTER TABLE plantstore.shares_by_name ADD COLUMN grantee_id bigint;

ALTER TABLE plantstore.shares_by_name ADD COLUMN declined_at bigint;

ALTER TABLE plantstore.shares_by_name ADD CONSTRAINT shares_by_name_grantee_id_fkey
FOREIGN KEY (grantee_id) REFERENCES plantstore.users (user_id) ON DELETE SET NULL;

CREATE INDEX shares_by_name_by_grantee ON plantstore.shares_by_name (grantee_id);

-- What gave access before is accepted. A row of the owner takes precedence over one of the operator.
INSERT INTO plantstore.shares_by_name (grantee_name, owner_id, role, created_at)
SELECT users.name, shares.owner_id, shares.role, shares.created_at
FROM plantstore.shares JOIN plantstore.users ON users.user_id = shares.grantee_id
ON CONFLICT (grantee_name, owner_id) DO NOTHING;

UPDATE plantstore.shares_by_name SET grantee_id = users.user_id FROM plantstore.users
WHERE users.name = shares_by_name.grantee_name AND users.user_id <> shares_by_name.owner_id;

-- Nodes of earlier releases still read the empty table. A later release drops it.
DELETE FROM plantstore.shares;
