-- What a write with an idempotency key came to, put down in the transaction that did it. Both the key and the request are
-- kept as SHA-256. `outcome` is an error number, or the status of a success; `message` is what an error said. Times are
-- seconds since 1970 in UTC.
CREATE TABLE idempotency_keys (
  user_id     INTEGER NOT NULL,
  key         BLOB    NOT NULL CHECK (length(key) = 32),
  fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 32),
  outcome     INTEGER NOT NULL,
  message     TEXT,
  expires_at  INTEGER NOT NULL,
  PRIMARY KEY (user_id, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

-- Whose plants somebody else may read (`reader`) or also change (`editor`).
CREATE TABLE shares (
  grantee_id INTEGER NOT NULL REFERENCES users (user_id) ON DELETE CASCADE,
  owner_id   INTEGER NOT NULL REFERENCES users (user_id) ON DELETE CASCADE,
  role       TEXT    NOT NULL CHECK (role IN ('reader', 'editor')),
  created_at INTEGER NOT NULL,
  PRIMARY KEY (grantee_id, owner_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX shares_by_owner ON shares (owner_id);
