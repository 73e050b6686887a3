-- The creator of a token: `operator`, `issuer` for a user with a token of the issuer, or `token` and the id of the token of the
-- same user that it was created with.
ALTER TABLE plantstore.tokens ADD COLUMN created_by text NOT NULL DEFAULT 'operator';

-- Shares that owners grant themselves, by the name of a user who may not exist yet. For the same owner and user, a row here
-- takes precedence over one in `shares`.
CREATE TABLE plantstore.shares_by_name (
  grantee_name text   NOT NULL,
  owner_id     bigint NOT NULL REFERENCES plantstore.users (user_id) ON DELETE CASCADE,
  role         text   NOT NULL CHECK (role IN ('reader', 'editor')),
  created_at   bigint NOT NULL,
  PRIMARY KEY (grantee_name, owner_id)
);

CREATE INDEX shares_by_name_by_owner ON plantstore.shares_by_name (owner_id);
