-- The creator of a token: `operator`, `issuer` for a user with a token of the issuer, or `token` and the id of the token of the
-- same user that it was created with.
ALTER TABLE tokens ADD COLUMN created_by TEXT NOT NULL DEFAULT 'operator';

-- Shares that owners grant themselves, by the name of a user who may not exist yet. For the same owner and user, a row here
-- takes precedence over one in `shares`.
CREATE TABLE shares_by_name (
  grantee_name TEXT    NOT NULL,
  owner_id     INTEGER NOT NULL REFERENCES users (user_id) ON DELETE CASCADE,
  role         TEXT    NOT NULL CHECK (role IN ('reader', 'editor')),
  created_at   INTEGER NOT NULL,
  PRIMARY KEY (grantee_name, owner_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX shares_by_name_by_owner ON shares_by_name (owner_id);
