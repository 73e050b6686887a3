//! One check run: sends every request, so that all responses are observed and all created plants are tracked.

use std::slice;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use plantstore_client::ClientError;
use plantstore_client::trust::TrustError;

use crate::cleanup_tracker::{CleanupTracker, TestPlant};
use crate::client::{Client, Request, RequestError};
use crate::response::{ListedPlant, Observations, Response, excerpt};
use crate::verdict::{CheckResult, Level, Verdict};
use plantstore_model::token::{Scope, Scopes};

/// Requests that may time out before no more are sent.
const TIMEOUTS_MAX: usize = 2;
/// Attempts of a request that the server answers with 429, and the longest wait in seconds before the next.
const ATTEMPTS_MAX: usize = 10;
const RETRY_AFTER_MAX: u64 = 30;
/// Time for a create without a response to take effect before its plant is deleted for the last time.
const PENDING_WAIT: Duration = Duration::from_secs(5);
/// Number of plants that are read if the user has too many to read all.
const FIRST_PLANTS: usize = 1_000;
const FIXTURE_PLANTS: usize = 5;

/// One rule of the contract, and the function that verifies it.
pub(crate) struct Check {
    pub(crate) id: &'static str,
    pub(crate) description: &'static str,
    pub(crate) level: Level,
    pub(crate) run: for<'a> fn(&'a mut Run) -> BoxFuture<'a, CheckResult>,
}

/// Defines a check whose function is an `async fn(&mut Run, …) -> CheckResult`.
macro_rules! check {
    ($level:ident, $id:literal, $description:literal, $run:ident $(, $argument:expr)*) => {
        crate::run::Check {
            id: $id,
            description: $description,
            level: crate::verdict::Level::$level,
            run: |run| Box::pin($run(run $(, $argument)*)),
        }
    };
}
pub(crate) use check;

/// Facts that earlier checks have established and later ones rely on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    /// A create never replaces another plant.
    pub(crate) duplicates_rejected: bool,
    /// The user has no plant with the lowest or the highest id.
    pub(crate) ends_are_free: bool,
    /// Lists are read in full, and show every plant with its id on request.
    pub(crate) ids_shown: bool,
}

pub(crate) struct Listing {
    pub(crate) response: Response,
    pub(crate) plants: Vec<ListedPlant>,
}

impl Listing {
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.plants.iter().any(|plant| plant.name == name)
    }
}

pub(crate) struct Run {
    pub(crate) client: Client,
    pub(crate) tracker: CleanupTracker,
    /// Those for plants that the token has.
    pub(crate) scopes: Scopes,
    /// All plants of the user can be read in one response, as far as is known.
    pub(crate) reads_all: bool,
    too_large: bool,
    /// Plants that exist during the whole run, for the checks of lists.
    fixtures: Vec<TestPlant>,
    pub(crate) observations: Observations,
    /// The reason why no more plants are created: one cannot be deleted, or would replace another.
    pub(crate) creating_stopped: Option<&'static str>,
    pub(crate) facts: Facts,
    timeouts: usize,
    deadline: Instant,
}

/// Error of a run that could not start. The messages say what to do.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("{0}: is the server running, and is the address correct?")]
    NoServer(RequestError),
    #[error("the server does not accept the token: {0}")]
    TokenRejected(String),
    #[error("the system's random source failed")]
    NoRandomSource,
}

impl Run {
    /// Connects to the server and determines the token's scopes, without creating a plant.
    pub(crate) async fn start(client: Client, time: Duration) -> Result<Self, RunError> {
        let mut run = Self {
            client,
            tracker: CleanupTracker::new().ok_or(RunError::NoRandomSource)?,
            scopes: Scopes::DEFAULT,
            reads_all: true,
            too_large: false,
            fixtures: Vec::new(),
            observations: Observations::default(),
            creating_stopped: None,
            facts: Facts::default(),
            timeouts: 0,
            deadline: Instant::now() + time,
        };
        let first = run.client.send(&Request::new("GET", "/plants?limit=0")).await.map_err(RunError::NoServer)?;
        if first.status == 401 {
            return Err(RunError::TokenRejected(excerpt(&String::from_utf8_lossy(&first.body))));
        }
        let allowed = [
            (first.status != 403).then_some(Scope::Read),
            run.is_allowed(Request::create("{}")).await.then_some(Scope::Write),
            run.is_allowed(Request::new("DELETE", "/plants/none")).await.then_some(Scope::Delete),
        ];
        run.scopes = Scopes::of(allowed.into_iter().flatten());
        Ok(run)
    }

    /// Sends an invalid request, whose scope is checked first. Without a response, the checks will show the scope.
    async fn is_allowed(&self, invalid: Request) -> bool {
        !self.client.send(&invalid).await.is_ok_and(|response| response.status == 403)
    }

    /// Grants more time, and forgets the timeouts so far.
    pub(crate) fn extend_deadline(&mut self, time: Duration) {
        self.timeouts = 0;
        self.deadline = Instant::now() + time;
    }

    /// Sends a request, and again after a 429.
    pub(crate) async fn send(&mut self, request: Request) -> CheckResult<Response> {
        for _ in 0..ATTEMPTS_MAX {
            let response = self.send_all(slice::from_ref(&request)).await?.swap_remove(0);
            match response.header("retry-after").and_then(|seconds| seconds.parse().ok()) {
                Some(seconds @ 0..=RETRY_AFTER_MAX) if response.status == 429 => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                }
                _ => return Ok(response),
            }
        }
        Err(Verdict::Untried("the rate limit of this user is too low for a check (429)".to_owned()))
    }

    /// Sends several requests on one connection. Returns as many responses.
    pub(crate) async fn send_all(&mut self, requests: &[Request]) -> CheckResult<Vec<Response>> {
        if self.timeouts >= TIMEOUTS_MAX || Instant::now() > self.deadline {
            return Err(Verdict::Untried("the server is too slow: no more requests are sent".to_owned()));
        }
        let responses = self.client.send_all(requests).await.map_err(|error| {
            self.timeouts += usize::from(matches!(error, RequestError::Timeout(_)));
            self.too_large |= matches!(error, RequestError::Client(ClientError::TooLarge { .. }));
            let first = requests.first().map(|request| format!("{} {}", request.method, request.path));
            let first = excerpt(&first.unwrap_or_default());
            Verdict::Fails(format!("{first}: expected a response: {error}"))
        })?;
        for (request, response) in requests.iter().zip(&responses) {
            self.observations.observe(request.method, response);
        }
        Ok(responses)
    }

    /// Lists all plants with these parameters, or the first of them if there are too many.
    pub(crate) async fn list(&mut self, parameters: &str) -> CheckResult<Listing> {
        if self.reads_all {
            let separator = if parameters.is_empty() { "" } else { "?" };
            let listed = self.list_at(&format!("/plants{separator}{parameters}")).await;
            if listed.is_ok() || !std::mem::take(&mut self.too_large) {
                return listed;
            }
            self.reads_all = false;
        }
        let separator = if parameters.is_empty() { "" } else { "&" };
        self.list_at(&format!("/plants?limit={FIRST_PLANTS}{separator}{parameters}")).await
    }

    pub(crate) async fn list_at(&mut self, path: &str) -> CheckResult<Listing> {
        let response = self.get(path).await?;
        let plants = response.plants()?;
        Ok(Listing { response, plants })
    }

    pub(crate) async fn get(&mut self, path: &str) -> CheckResult<Response> {
        self.may_read()?;
        self.send(Request::new("GET", path)).await
    }

    pub(crate) fn may_read(&self) -> CheckResult {
        if self.scopes.contains(Scope::Read) { Ok(()) } else { Err(lacks("plants:read")) }
    }

    /// Fails unless plants can be created and deleted again.
    pub(crate) fn may_create(&self) -> CheckResult {
        match self.creating_stopped {
            _ if !self.scopes.contains(Scope::Write) => Err(lacks("plants:write")),
            _ if !self.scopes.contains(Scope::Delete) => {
                Err(lacks("plants:delete, which is needed to delete created plants"))
            }
            Some(reason) => Err(Verdict::Untried(reason.to_owned())),
            None => Ok(()),
        }
    }

    pub(crate) fn new_plant(&mut self, word: &str) -> TestPlant {
        self.tracker.new_plant(word)
    }

    pub(crate) async fn existing_plant(&mut self, word: &str) -> CheckResult<TestPlant> {
        let plant = self.new_plant(word);
        self.create(&plant).await?.expect_success()?;
        Ok(plant)
    }

    pub(crate) async fn create(&mut self, plant: &TestPlant) -> CheckResult<Response> {
        self.create_with(plant.id, Request::create(plant.json())).await
    }

    /// Sends a create whose plant has this id if the server accepts it.
    pub(crate) async fn create_with(&mut self, id: i64, request: Request) -> CheckResult<Response> {
        self.may_create()?;
        self.tracker.creating(id);
        let response = self.send(request).await?;
        self.tracker.create_responded(id, response.status);
        Ok(response)
    }

    pub(crate) async fn delete(&mut self, id: i64) -> CheckResult<Response> {
        self.delete_with(id, Request::new("DELETE", format!("/plants/{id}"))).await
    }

    pub(crate) async fn delete_with(&mut self, id: i64, request: Request) -> CheckResult<Response> {
        let response = self.send(request).await?;
        match response.status {
            200..300 => self.tracker.deleted(id),
            404 => self.tracker.not_found(id),
            _ => {}
        }
        Ok(response)
    }

    pub(crate) async fn remove(&mut self, id: i64) -> CheckResult {
        let response = self.delete(id).await?;
        response.expect(response.is_success(), "a created plant to be deletable")
    }

    /// Deletes the plants that the list shows with this name of the run, whatever their ids are.
    pub(crate) async fn remove_named(&mut self, name: &str) -> CheckResult {
        let listing = self.list("include=id").await?;
        for id in listing.plants.iter().filter(|plant| plant.name == name).filter_map(|plant| plant.id) {
            self.remove(id).await?;
        }
        Ok(())
    }

    /// Returns the fixture plants, which are created at the first call.
    pub(crate) async fn fixture_plants(&mut self) -> CheckResult<Vec<TestPlant>> {
        self.may_create()?;
        while self.fixtures.len() < FIXTURE_PLANTS {
            let number = self.fixtures.len();
            let mut plant = self.new_plant(&format!("fixture {number}"));
            plant.tag = number.is_multiple_of(2).then(|| format!("tag {number}"));
            self.create(&plant).await?.expect_success()?;
            self.fixtures.push(plant);
        }
        Ok(self.fixtures.clone())
    }

    /// Fails if a plant is missing in a list. If only the first plants were read, the check is not applicable.
    pub(crate) fn expect_listed<'a>(
        &self,
        listing: &Listing,
        plants: impl IntoIterator<Item = &'a TestPlant>,
    ) -> CheckResult {
        match plants.into_iter().find(|plant| !listing.contains(&plant.name)) {
            None => Ok(()),
            Some(_) if !self.reads_all => Err(too_many()),
            Some(plant) => {
                Err(listing.response.failure(format_args!("`{}` in the list, which was created", plant.name)))
            }
        }
    }

    /// Deletes the plants of this run; again after a wait, because a create without a response can take effect late.
    pub(crate) async fn clean_up(&mut self) -> CheckResult {
        let mut outcome = self.delete_tracked().await;
        if self.tracker.has_pending() {
            tokio::time::sleep(PENDING_WAIT).await;
            outcome = outcome.and(self.delete_tracked().await);
        }
        match outcome {
            outcome if self.tracker.remaining().is_empty() => outcome,
            Ok(()) if self.tracker.has_only_pending() => {
                Err(Verdict::Untried(format!("{}, whose creates got no response", self.remains())))
            }
            outcome => {
                let reason = Verdict::of(outcome).detail().map(|reason| format!(" ({reason})")).unwrap_or_default();
                Err(Verdict::Fails(format!("{}{reason}", self.remains())))
            }
        }
    }

    async fn delete_tracked(&mut self) -> CheckResult {
        let mut outcome = Ok(());
        for id in self.tracker.deletable() {
            let deleted = self.delete(id).await.and_then(|response| {
                let gone = response.is_success() || response.status == 404;
                response.expect(gone, "a created plant to be deletable")
            });
            outcome = outcome.and(deleted);
        }
        if self.scopes == Scopes::DEFAULT { outcome.and(self.delete_listed().await) } else { outcome }
    }

    /// Deletes the plants whose names have the run's marker, whatever the server responded to their creates.
    async fn delete_listed(&mut self) -> CheckResult {
        let found = self.listed_of_this_run().await?;
        let stored = self.names_of_unexpected(&found);
        for id in found.iter().filter_map(|plant| plant.id) {
            self.delete(id).await?;
        }
        let left = self.listed_of_this_run().await?;
        match (stored, self.names_of_unexpected(&left)) {
            (None, None) => Ok(()),
            (_, Some(left)) => Err(Verdict::Fails(format!("still on the server after their deletion: {left}"))),
            (Some(stored), None) => {
                Err(Verdict::Fails(format!("deleted only now, although their creates were rejected: {stored}")))
            }
        }
    }

    /// Returns the plants that must not be there. The create of a pending one has only taken effect late.
    fn names_of_unexpected(&self, plants: &[ListedPlant]) -> Option<String> {
        let pending = |plant: &&ListedPlant| plant.id.is_some_and(|id| self.tracker.is_pending(id));
        let names: Vec<String> =
            plants.iter().filter(|plant| !pending(plant)).map(|plant| excerpt(&plant.name)).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    async fn listed_of_this_run(&mut self) -> CheckResult<Vec<ListedPlant>> {
        let listing = self.list("include=id").await?;
        Ok(listing.plants.into_iter().filter(|plant| self.is_of_this_run(&plant.name)).collect())
    }

    pub(crate) fn is_of_this_run(&self, name: &str) -> bool {
        name.contains(&self.tracker.marker)
    }

    pub(crate) fn remains(&self) -> String {
        let ids: Vec<String> = self.tracker.remaining().iter().map(i64::to_string).collect();
        match ids.as_slice() {
            [] => "nothing is left on the server".to_owned(),
            ids => format!("possibly left on the server: the plants {}", ids.join(", ")),
        }
    }
}

fn lacks(scope: &str) -> Verdict {
    Verdict::NotApplicable(format!("the token lacks {scope}"))
}

pub(crate) fn too_many() -> Verdict {
    Verdict::NotApplicable("this user has too many plants to read all: use a separate user for checks".to_owned())
}
