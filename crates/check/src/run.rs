//! One check run: sends every request, so that all responses are observed and all created plants are tracked.

use std::time::{Duration, Instant};

use plantstore_client::trust::TrustError;

use crate::cleanup_tracker::CleanupTracker;
use crate::client::{Client, RequestError};
use crate::error::{CheckError, CheckResult};
use crate::observations::Observations;
use crate::options::Options;
use crate::request::{Request, plant_json};
use crate::response::{ListedPlant, Response, excerpt};

/// Requests that may time out before no more are sent.
const TIMEOUTS_MAX: usize = 2;
/// Attempts of a request that the server answers with 429, and the longest wait in seconds before the next.
const ATTEMPTS_MAX: usize = 10;
const RETRY_AFTER_MAX: u64 = 30;
/// Time for a create without a response to take effect before its plant is deleted for the last time.
const PENDING_WAIT: Duration = Duration::from_secs(5);
/// Number of plants that are read if the user has too many to read all.
const FIRST_PLANTS: usize = 1_000;
/// Number of fixture plants.
const FIXTURE_PLANTS: usize = 5;

/// The scopes of the token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantedScopes {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) delete: bool,
}

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

/// A plant that exists during the whole run, for the checks of lists.
#[derive(Clone, Debug)]
pub(crate) struct FixturePlant {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
}

/// The part of a list that was read.
pub(crate) struct Listing {
    pub(crate) response: Response,
    pub(crate) plants: Vec<ListedPlant>,
}

pub(crate) struct Run {
    client: Client,
    token: String,
    pub(crate) tracker: CleanupTracker,
    pub(crate) scopes: GrantedScopes,
    /// All plants of the user can be read in one response, as far as is known.
    pub(crate) reads_all: bool,
    /// The last list was too large.
    too_large: bool,
    fixtures: Vec<FixturePlant>,
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
    pub(crate) async fn start(options: Options, time: Duration) -> Result<Self, RunError> {
        let Options { url, token, authorities, proxies, timeout, .. } = options;
        let client = Client::new(url, authorities.as_deref(), proxies, timeout)?;
        let mut run = Self::new(client, token, time).ok_or(RunError::NoRandomSource)?;
        let first = run.with_token(Request::new("GET", "/plants?limit=0"));
        let first = run.client.send(&first).await.map_err(RunError::NoServer)?;
        if first.status == 401 {
            let body = run.redact_token(first).body;
            return Err(RunError::TokenRejected(excerpt(&String::from_utf8_lossy(&body))));
        }
        run.scopes = run.probe_scopes(first.status).await;
        Ok(run)
    }

    fn new(client: Client, token: String, time: Duration) -> Option<Self> {
        Some(Self {
            client,
            token,
            tracker: CleanupTracker::new()?,
            scopes: GrantedScopes::default(),
            reads_all: true,
            too_large: false,
            fixtures: Vec::new(),
            observations: Observations::default(),
            creating_stopped: None,
            facts: Facts::default(),
            timeouts: 0,
            deadline: Instant::now() + time,
        })
    }

    #[cfg(test)]
    pub(crate) fn offline() -> Self {
        use plantstore_client::Proxies;

        let url = "http://127.0.0.1:1".parse().expect("an address");
        let client = Client::new(url, None, Proxies::default(), Duration::from_secs(1)).expect("a client");
        Self::new(client, String::new(), Duration::from_secs(1)).expect("a random source")
    }

    /// Sends an invalid plant and an invalid id, which the server rejects with 403 if the scope is missing, because it checks
    /// the scope first.
    async fn probe_scopes(&mut self, list_status: u16) -> GrantedScopes {
        let create = self.with_token(Request::create("{}"));
        let delete = self.with_token(Request::new("DELETE", "/plants/none"));
        let mut allows = [true; 2];
        for (allows, request) in allows.iter_mut().zip([create, delete]) {
            // Without a response the scope is unknown; the checks will show it.
            *allows = self.client.send(&request).await.map_or(true, |response| response.status != 403);
        }
        GrantedScopes { read: list_status != 403, write: allows[0], delete: allows[1] }
    }

    /// Grants more time, and forgets the timeouts so far.
    pub(crate) fn extend_deadline(&mut self, time: Duration) {
        (self.timeouts, self.deadline) = (0, Instant::now() + time);
    }

    pub(crate) fn with_token(&self, request: Request) -> Request {
        self.with_scheme("Bearer", request)
    }

    /// Adds the token under another name of the authentication scheme.
    pub(crate) fn with_scheme(&self, scheme: &str, request: Request) -> Request {
        request.with("authorization", format!("{scheme} {}", self.token))
    }

    /// Sends a request with the token.
    pub(crate) async fn send(&mut self, request: Request) -> CheckResult<Response> {
        let request = self.with_token(request);
        self.send_as_is(&request).await
    }

    /// Sends a request without adding the token, and again after a 429.
    pub(crate) async fn send_as_is(&mut self, request: &Request) -> CheckResult<Response> {
        for _ in 0..ATTEMPTS_MAX {
            let responses = self.send_all(std::slice::from_ref(request)).await?;
            let no_response = |_| CheckError::Untried("no response".to_owned());
            let [response] = <[Response; 1]>::try_from(responses).map_err(no_response)?;
            let pause = response.header("retry-after").and_then(|seconds| seconds.parse().ok());
            match pause {
                Some(seconds @ 0..=RETRY_AFTER_MAX) if response.status == 429 => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                }
                _ => return Ok(response),
            }
        }
        Err(CheckError::Untried("the rate limit of this user is too low for a check (429)".to_owned()))
    }

    /// Sends several requests on one connection.
    pub(crate) async fn send_all(&mut self, requests: &[Request]) -> CheckResult<Vec<Response>> {
        if self.timeouts >= TIMEOUTS_MAX || Instant::now() > self.deadline {
            return Err(CheckError::Untried("the server is too slow: no more requests are sent".to_owned()));
        }
        let sent = match requests {
            [request] => self.client.send(request).await.map(|response| vec![response]),
            several => self.client.send_all(several).await,
        };
        let responses = sent.map_err(|error| {
            self.timeouts += usize::from(matches!(error, RequestError::Timeout(_)));
            self.too_large |= matches!(error, RequestError::TooLarge);
            let first = requests.first().map(|request| format!("{} {}", request.method, request.path));
            let first = excerpt(&first.unwrap_or_default());
            CheckError::Failed(format!("{first}: expected a response: {error}"))
        })?;
        let responses: Vec<Response> = responses.into_iter().map(|response| self.redact_token(response)).collect();
        for (request, response) in requests.iter().zip(&responses) {
            self.observations.observe(request.method, response);
        }
        Ok(responses)
    }

    /// Removes the token from a response, so that no message shows it.
    fn redact_token(&self, mut response: Response) -> Response {
        let redacted = |text: &str| text.replace(&self.token, "(the token)");
        if String::from_utf8_lossy(&response.body).contains(&self.token) {
            response.body = redacted(&String::from_utf8_lossy(&response.body)).into_bytes();
        }
        response.headers.iter_mut().for_each(|(_, value)| *value = redacted(value));
        response
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

    /// Lists the plants at exactly this path.
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
        if self.scopes.read { Ok(()) } else { Err(lacks("plants:read")) }
    }

    /// Fails unless plants can be created and deleted again.
    pub(crate) fn may_create(&self) -> CheckResult {
        match self.creating_stopped {
            _ if !self.scopes.write => Err(lacks("plants:write")),
            _ if !self.scopes.delete => Err(lacks("plants:delete, which is needed to delete created plants")),
            Some(reason) => Err(CheckError::Untried(reason.to_owned())),
            None => Ok(()),
        }
    }

    /// Sends a create whose plant has this id if the server accepts it.
    pub(crate) async fn create(&mut self, id: i64, request: Request) -> CheckResult<Response> {
        let request = self.with_token(request);
        self.create_as_is(id, &request).await
    }

    pub(crate) async fn create_as_is(&mut self, id: i64, request: &Request) -> CheckResult<Response> {
        self.may_create()?;
        self.tracker.creating(id);
        let response = self.send_as_is(request).await?;
        self.tracker.create_responded(id, response.status);
        Ok(response)
    }

    pub(crate) async fn create_plant(&mut self, id: i64, name: &str, tag: Option<&str>) -> CheckResult {
        self.create(id, Request::create(plant_json(id, name, tag))).await?.expect_success()
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

    /// Deletes a plant that a check no longer needs.
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
    pub(crate) async fn fixture_plants(&mut self) -> CheckResult<Vec<FixturePlant>> {
        self.may_create()?;
        while self.fixtures.len() < FIXTURE_PLANTS {
            let number = self.fixtures.len();
            let (id, name) = (self.tracker.new_id(), self.tracker.name(&format!("fixture {number}")));
            let tag = number.is_multiple_of(2).then(|| format!("tag {number}"));
            self.create_plant(id, &name, tag.as_deref()).await?;
            self.fixtures.push(FixturePlant { id, name, tag });
        }
        Ok(self.fixtures.clone())
    }

    /// Fails if a name is missing in a list. If only the first plants were read, the check is not applicable.
    pub(crate) fn expect_listed(&self, listing: &Listing, names: &[&str]) -> CheckResult {
        let missing = names.iter().find(|name| !listing.plants.iter().any(|plant| plant.name == **name));
        match missing {
            None => Ok(()),
            Some(_) if !self.reads_all => Err(too_many()),
            Some(name) => Err(listing.response.failure(format_args!("`{name}` in the list, which was created"))),
        }
    }

    /// Deletes the plants of this run, and lists what is left. A create without a response can take effect after its plant
    /// was not found, so the cleanup is repeated after a wait.
    pub(crate) async fn clean_up(&mut self) -> CheckResult {
        let mut outcome = self.delete_tracked().await;
        if self.tracker.has_pending() {
            tokio::time::sleep(PENDING_WAIT).await;
            outcome = outcome.and(self.delete_tracked().await);
        }
        match outcome {
            outcome if self.tracker.remaining().is_empty() => outcome,
            Ok(()) if self.tracker.has_only_pending() => {
                Err(CheckError::Untried(format!("{}, whose creates got no response", self.remains())))
            }
            outcome => {
                let reason = outcome.err().map_or_else(String::new, |error| format!(" ({})", error.text()));
                Err(CheckError::Failed(format!("{}{reason}", self.remains())))
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
        let all = self.scopes.read && self.scopes.write && self.scopes.delete;
        if all { outcome.and(self.delete_listed().await) } else { outcome }
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
            (_, Some(left)) => Err(CheckError::Failed(format!("still on the server after their deletion: {left}"))),
            (Some(stored), None) => {
                Err(CheckError::Failed(format!("deleted only now, although their creates were rejected: {stored}")))
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
        name.contains(self.tracker.marker())
    }

    /// Describes what may be left on the server.
    pub(crate) fn remains(&self) -> String {
        let ids: Vec<String> = self.tracker.remaining().iter().map(i64::to_string).collect();
        match ids.as_slice() {
            [] => "nothing is left on the server".to_owned(),
            ids => format!("possibly left on the server: the plants {}", ids.join(", ")),
        }
    }
}

fn lacks(scope: &str) -> CheckError {
    CheckError::NotApplicable(format!("the token lacks {scope}"))
}

/// Returns the error of a check that needs more of the list than is read.
pub(crate) fn too_many() -> CheckError {
    CheckError::NotApplicable("this user has too many plants to read all: use a separate user for checks".to_owned())
}
