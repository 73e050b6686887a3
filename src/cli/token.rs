//! `plantstore token`: issues, lists and revokes access tokens.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::Serialize;

use super::store_options::{CreateOption, ListCommandOptions, StoreOption};
use super::table::Column::{Number, Text, Wrapped};
use super::terminal::{format_date, format_date_time};
use plantstore_model::token::{
    PlainToken, Scope, Scopes, TokenAttributes, TokenCreator, TokenId, TokenLabel, TokenState,
};
use plantstore_model::user::UserName;
use plantstore_server::value_parser::duration;
use plantstore_store::{SchemaChange, StoredToken};

const DEFAULT_EXPIRY: &str = "90d";

#[derive(Subcommand)]
pub(super) enum TokenCommand {
    Create(CreateToken),
    List(ListTokens),
    Revoke(RevokeToken),
}

/// Issue a token and print it; it is shown only this once
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore token create --user ada
  plantstore token create --user ada --label balcony --scope plants:read --expires 30d
  plantstore token create --user ada --store 'postgres://plants@db/plants?sslmode=verify-full'")]
pub(super) struct CreateToken {
    /// The user of the token; created if there is no such user
    #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
    user: UserName,
    /// A description of the token's purpose
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = TokenLabel::parse)]
    label: TokenLabel,
    /// The scopes of the token: plants:read, plants:write and plants:delete, which are the default; tokens:manage, shares:manage
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', value_parser = scope)]
    scopes: Vec<Scope>,
    /// The lifetime of the token, such as 12h or 90d, or never
    #[arg(long, value_name = "TIME", default_value = DEFAULT_EXPIRY, value_parser = expiry)]
    expires: Expiry,
    #[command(flatten)]
    store: StoreOption,
    #[command(flatten)]
    new_store: CreateOption,
}

/// List tokens, never the secrets themselves
///
/// Dates are in UTC. `all` stands for all scopes, `plants` for plants:read, plants:write and plants:delete; `read`, `write`,
/// `delete`, `tokens` and `shares` stand for one of them. CREATED names the token or the issuer with which the
/// user created the token, unless the operator did. --json prints full names and times.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore token list
  plantstore token list --user ada --json")]
pub(super) struct ListTokens {
    /// Only tokens of this user
    #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
    user: Option<UserName>,
    #[command(flatten)]
    list: ListCommandOptions,
}

/// Revoke a token permanently; every running server rejects it within 5 seconds
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore token revoke 2")]
pub(super) struct RevokeToken {
    /// The id of the token, as `token list` shows it
    #[arg(value_name = "ID", value_parser = token_id)]
    id: i64,
    #[command(flatten)]
    store: StoreOption,
}

#[derive(Clone, Copy, Debug)]
enum Expiry {
    Never,
    After(Duration),
}

fn expiry(text: &str) -> Result<Expiry, String> {
    if text == "never" {
        return Ok(Expiry::Never);
    }
    duration(text).map(Expiry::After).map_err(|error| format!("{error}; or write never"))
}

fn token_id(text: &str) -> Result<i64, &'static str> {
    text.parse().map_err(|_| "the id of a token is a number: `plantstore token list` shows it")
}

fn scope(text: &str) -> Result<Scope, String> {
    Scope::from_name(text).ok_or_else(|| format!("the scopes are: {}", Scopes::ALL))
}

impl TokenCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Create(options) => options.run(),
            Self::List(options) => options.run(),
            Self::Revoke(options) => options.run(),
        }
    }
}

pub(super) fn default_attributes(label: TokenLabel) -> TokenAttributes {
    let created = Timestamp::now();
    TokenAttributes {
        label,
        scopes: Scopes::DEFAULT,
        creator: TokenCreator::Operator,
        created,
        expires: duration(DEFAULT_EXPIRY).ok().and_then(|lifetime| created.checked_add(lifetime).ok()),
    }
}

impl CreateToken {
    fn run(self) -> anyhow::Result<()> {
        let mut attributes = default_attributes(self.label);
        if !self.scopes.is_empty() {
            attributes.scopes = Scopes::of(self.scopes);
        }
        attributes.expires = match self.expires {
            Expiry::Never => None,
            // A time beyond the last timestamp becomes the last timestamp.
            Expiry::After(time) => Some(attributes.created.checked_add(time).unwrap_or(Timestamp::MAX)),
        };
        let id = self.store.with(self.new_store.schema_change(), async |store| {
            let token = PlainToken::generate()?;
            let id = store.create_token(&self.user, &token.hash(), &attributes).await?;
            let mut output = io::stdout().lock();
            if let Err(error) = writeln!(output, "{}", token.reveal()).and_then(|()| output.flush()) {
                // No user has seen the token, so it must not stay valid.
                store.revoke_token(id, Timestamp::now()).await?;
                bail!("cannot print the token, so it is revoked again: {error}");
            }
            Ok(id)
        })?;
        let expires = attributes
            .expires
            .map_or_else(|| "never expires".to_owned(), |at| format!("expires {} UTC", format_date_time(at)));
        writeln!(
            io::stderr(),
            "token {id} for {}: {}, {expires}. Keep it now, it is not shown again.",
            self.user,
            attributes.scopes
        )?;
        Ok(())
    }
}

impl ListTokens {
    fn run(self) -> anyhow::Result<()> {
        let tokens =
            self.list.store.with(SchemaChange::None, async |store| Ok(store.tokens(self.user.as_ref()).await?))?;
        let now = Timestamp::now();
        let listed =
            |token: StoredToken| ListedToken { state: token.state(now), created_by: token.attributes.creator, token };
        let tokens: Vec<_> = tokens.into_iter().map(listed).collect();
        let columns = [
            Number("ID"),
            Wrapped("USER"),
            Wrapped("LABEL"),
            Wrapped("SCOPES"),
            Wrapped("CREATED"),
            Text("EXPIRES"),
            Text("LAST USED"),
            Text("STATE"),
        ];
        let date = |time: Option<Timestamp>| time.map_or_else(|| "never".to_owned(), format_date);
        self.list.print(&tokens, columns, |ListedToken { token, state, created_by }| {
            let attributes = &token.attributes;
            [
                token.id.to_string(),
                token.user.to_string(),
                attributes.label.as_str().to_owned(),
                abbreviate(attributes.scopes),
                match created_by {
                    TokenCreator::Operator => format_date(attributes.created),
                    creator => format!("{} by {creator}", format_date(attributes.created)),
                },
                date(attributes.expires),
                date(token.last_used),
                state.name().to_owned(),
            ]
        })
    }
}

fn abbreviate(scopes: Scopes) -> String {
    if scopes == Scopes::ALL {
        return "all".to_owned();
    }
    let has_all_of_plants = scopes.intersection(Scopes::DEFAULT) == Scopes::DEFAULT;
    let rest = if has_all_of_plants { scopes.without(Scopes::DEFAULT) } else { scopes };
    let short = |name: &'static str| name.trim_start_matches("plants:").trim_end_matches(":manage");
    let names = has_all_of_plants.then_some("plants").into_iter().chain(rest.iter().map(Scope::name).map(short));
    names.collect::<Vec<_>>().join(" ")
}

impl RevokeToken {
    fn run(self) -> anyhow::Result<()> {
        let id = TokenId::new(self.id);
        let known =
            self.store.with(SchemaChange::None, async |store| Ok(store.revoke_token(id, Timestamp::now()).await?))?;
        if !known {
            bail!("there is no token {id}: `plantstore token list` shows those there are");
        }
        writeln!(io::stderr(), "token {id} is revoked: every running server rejects it within 5 seconds")?;
        Ok(())
    }
}

/// A token as `--json` prints it.
#[derive(Serialize)]
struct ListedToken {
    #[serde(flatten)]
    token: StoredToken,
    state: TokenState,
    created_by: TokenCreator,
}
