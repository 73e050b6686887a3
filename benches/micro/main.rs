//! Micro-benchmarks of `scripts/bench micro`: single steps of a request, without HTTP.
//!
//! `micro CASE FILE SECONDS` runs one step repeatedly on the store in FILE, which it creates, and prints the number of
//! repetitions and the seconds as JSON. The driver alternates the cases and takes the medians.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use plantstore_model::plant::{NewPlant, Plant};
use plantstore_model::token::{PlainToken, Scopes, TokenAttributes, TokenCreator, TokenHash, TokenLabel};
use plantstore_model::user::{UserId, UserName};
use plantstore_store::{OpenOptions, PlantRange, PlantWrite, SchemaChange, Store, StoreUrl, WriteContext};

const BODY: &[u8] = br#"{"id":123456789012345,"name":"Monstera deliciosa","tag":"indoor"}"#;
const LIST_LENGTH: usize = 20;
/// Creates that wait for one commit.
const BATCH: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error>;

struct Fixture {
    store: Store,
    user: UserId,
    token: PlainToken,
}

impl Fixture {
    async fn open(file: &str) -> Result<Self, Failure> {
        let options = OpenOptions {
            schema_change: SchemaChange::Create,
            // The places of a batch are returned after its replies.
            write_queue: 2 * BATCH,
            readers: 1,
            admin_timeout: TIMEOUT,
            timeout: TIMEOUT,
            await_server: false,
            worker_addresses: None,
        };
        let store = Store::open(&format!("sqlite:{file}").parse::<StoreUrl>()?, options).await?.store;
        let name = UserName::parse("ada")?;
        let user = store.ensure_user(&name).await?;
        let token = PlainToken::generate()?;
        let attributes = TokenAttributes {
            label: TokenLabel::parse("benchmark")?,
            scopes: Scopes::ALL,
            creator: TokenCreator::Operator,
            created: Timestamp::now(),
            expires: None,
        };
        store.create_token(&name, &token.hash(), &attributes).await?;
        Ok(Self { store, user, token })
    }

    /// Creates plants with consecutive ids concurrently, so that they share a commit.
    async fn create(&self, first: i64, count: usize) -> Result<(), Failure> {
        let context = || WriteContext { user: self.user, owner: self.user };
        let plants = (first..).take(count).map(|id| {
            let body = format!(r#"{{"id":{id},"name":"Monstera deliciosa","tag":"indoor"}}"#);
            NewPlant::from_json(body.as_bytes())
        });
        let plants = plants.collect::<Result<Vec<_>, _>>()?;
        for outcome in
            join_all(plants.into_iter().map(|plant| self.store.write(context(), PlantWrite::Create(plant), None))).await
        {
            outcome?;
        }
        Ok(())
    }

    async fn check_token(&self) -> Result<(), Failure> {
        let hash = TokenHash::of(black_box(self.token.reveal()));
        self.store.find_token(&hash).await?.ok_or("the token is unknown")?;
        Ok(())
    }

    async fn encode_list(&self) -> Result<(), Failure> {
        let mut bytes = Vec::with_capacity(1_024);
        let mut ranges = [PlantRange::all_of(self.user)];
        let push = |_, _, name: &str, tag: Option<&str>| {
            bytes.push(b',');
            // Serialising strings to memory cannot fail.
            let _ = serde_json::to_writer(&mut bytes, &Plant { id: None, owner: None, name, tag });
            ControlFlow::Continue(())
        };
        self.store.list(&mut ranges, None, LIST_LENGTH, push).await?;
        black_box(bytes);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [case, file, seconds] = &arguments[..] else {
        return Err("usage: micro body|token|list|commit FILE SECONDS".into());
    };
    let fixture = Fixture::open(file).await?;
    // Ids of other runs on the same file are lower.
    let mut next_id = Timestamp::now().as_microsecond();
    fixture.create(next_id, LIST_LENGTH).await?;
    let time = Duration::from_secs(seconds.parse()?);
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < time {
        match case.as_str() {
            "body" => drop(black_box(NewPlant::from_json(black_box(BODY))?)),
            "token" => fixture.check_token().await?,
            "list" => fixture.encode_list().await?,
            "commit" => {
                next_id += i64::try_from(BATCH)?;
                fixture.create(next_id, BATCH).await?;
            }
            _ => return Err(format!("there is no case {case}").into()),
        }
        count += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    fixture.store.close().await;
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        println!("{{\"count\":{count},\"seconds\":{seconds}}}");
    }
    Ok(())
}
