-- Users are known by a number that is never given out twice (AUTOINCREMENT): rows left behind by a user who was deleted
-- can never become somebody else's.
CREATE TABLE users (
  user_id    INTEGER PRIMARY KEY AUTOINCREMENT,
  name       TEXT    NOT NULL UNIQUE,
  -- Moves in the same transaction as every create and delete of this user's plants.
  version    INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL
) STRICT;

-- Users whose name and tokens are gone and whose plants are being removed in small steps.
CREATE TABLE departed_users (
  user_id INTEGER PRIMARY KEY
) STRICT;

-- Only the SHA-256 of a token is kept. Times are seconds since 1970 in UTC.
CREATE TABLE tokens (
  token_id     INTEGER PRIMARY KEY AUTOINCREMENT,
  hash         BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
  user_id      INTEGER NOT NULL REFERENCES users (user_id) ON DELETE CASCADE,
  label        TEXT    NOT NULL,
  scopes       TEXT    NOT NULL,
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  revoked_at   INTEGER,
  last_used_at INTEGER
) STRICT;

CREATE INDEX tokens_by_user ON tokens (user_id);

-- A plant remembers the version of its user that created it, so that a list read in several steps can leave out what
-- came after its first.
CREATE TABLE plants (
  user_id  INTEGER NOT NULL,
  plant_id INTEGER NOT NULL,
  name     TEXT    NOT NULL,
  tag      TEXT,
  version  INTEGER NOT NULL,
  PRIMARY KEY (user_id, plant_id)
) STRICT, WITHOUT ROWID;
