//! One visit: every request goes through here, so that what was seen is noted and what was created is known.

use std::time::{Duration, Instant};

use serde_json::json;

use super::answer::{Answer, Shown, shown};
use super::client::{Ask, Client, Failure};
use super::ledger::Ledger;
use super::seen::Seen;
use super::{Options, Outcome, Trouble, VisitFault, deadline};

/// Answers that may fail to come in time before no more are waited for.
const LATE_MAX: usize = 2;
/// How often a request is sent again that the server had no room for, and how long is waited at the most each time.
const TURNED_AWAY_MAX: usize = 10;
const RETRY_AFTER_MAX: u64 = 30;
/// How long a create that was not answered gets to be done after all, before its plant is deleted for the last time.
const LATECOMERS: Duration = Duration::from_secs(5);
/// Plants that are read where there are too many to read all.
const FRONT: usize = 1_000;
/// Plants that stay for the whole visit.
const BED: usize = 5;

/// What the token allows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scopes {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) delete: bool,
}

/// What earlier checks have found, and later ones rely on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// A create never takes the place of another plant.
    pub(super) duplicates_refused: bool,
    /// Nobody has the lowest and the highest id.
    pub(super) ends_are_free: bool,
    /// Lists are read whole, and show every plant with its id if asked to.
    pub(super) ids_shown: bool,
}

/// A plant that stays for the whole visit, for the checks of lists.
#[derive(Clone, Debug)]
pub(super) struct Bedded {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) tag: Option<String>,
}

/// A list, as far as it is read.
pub(super) struct Listing {
    pub(super) answer: Answer,
    pub(super) plants: Vec<Shown>,
}

pub(super) struct Visit {
    client: Client,
    token: String,
    pub(super) ledger: Ledger,
    pub(super) scopes: Scopes,
    /// Whether all plants of the user can be read at once, as far as is known.
    pub(super) reads_all: bool,
    /// Whether there was an answer that was too large.
    too_large: bool,
    bed: Vec<Bedded>,
    pub(super) seen: Seen,
    /// Set when a plant cannot be deleted, or would take the place of another: then no more are created.
    pub(super) planting_stopped: Option<&'static str>,
    pub(super) known: Known,
    late: usize,
    deadline: Instant,
}

impl Visit {
    /// Finds the server, and what the token allows there, without touching a plant.
    pub(super) async fn begin(options: Options, patience: Duration) -> Result<Self, VisitFault> {
        let Options { url, token, authorities, timeout, .. } = options;
        let client = Client::new(url, authorities.as_deref(), timeout)?;
        let mut visit = Self::new(client, token, patience).ok_or(VisitFault::NoRandomSource)?;
        let first = visit.as_ourselves(Ask::new("GET", "/plants?limit=0"));
        let first = visit.client.ask(&first).await.map_err(VisitFault::NoServer)?;
        if first.status == 401 {
            let body = visit.without_token(first).body;
            return Err(VisitFault::Refused(shown(&String::from_utf8_lossy(&body))));
        }
        visit.scopes = visit.find_scopes(first.status).await;
        Ok(visit)
    }

    fn new(client: Client, token: String, patience: Duration) -> Option<Self> {
        Some(Self {
            client,
            token,
            ledger: Ledger::new()?,
            scopes: Scopes::default(),
            reads_all: true,
            too_large: false,
            bed: Vec::new(),
            seen: Seen::default(),
            planting_stopped: None,
            known: Known::default(),
            late: 0,
            deadline: deadline(patience),
        })
    }

    #[cfg(test)]
    pub(super) fn nowhere() -> Self {
        let url = "http://127.0.0.1:1".parse().expect("an address");
        let client = Client::new(url, None, Duration::from_secs(1)).expect("a client");
        Self::new(client, String::new(), Duration::from_secs(1)).expect("a random source")
    }

    /// What is no plant and no id is refused by whoever looks at it, and the scope is looked at before.
    async fn find_scopes(&mut self, list_status: u16) -> Scopes {
        let create = self.as_ourselves(Ask::new("POST", "/plants").with("content-type", "application/json").body("{}"));
        let delete = self.as_ourselves(Ask::new("DELETE", "/plants/none"));
        let mut allows = [true; 2];
        for (allows, ask) in allows.iter_mut().zip([create, delete]) {
            // Whoever does not answer has not refused: the checks will tell.
            *allows = self.client.ask(&ask).await.map_or(true, |answer| answer.status != 403);
        }
        Scopes { read: list_status != 403, write: allows[0], delete: allows[1] }
    }

    /// More time, and a new start with a server that was late.
    pub(super) fn grant(&mut self, patience: Duration) {
        (self.late, self.deadline) = (0, deadline(patience));
    }

    pub(super) fn as_ourselves(&self, ask: Ask) -> Ask {
        let bearer = format!("Bearer {}", self.token);
        ask.with("authorization", bearer)
    }

    /// The same token, introduced by another word.
    pub(super) fn introduced_by(&self, scheme: &str, ask: Ask) -> Ask {
        let bearer = format!("{scheme} {}", self.token);
        ask.with("authorization", bearer)
    }

    /// Asks with our token.
    pub(super) async fn ask(&mut self, ask: Ask) -> Outcome<Answer> {
        let ask = self.as_ourselves(ask);
        self.ask_as_is(&ask).await
    }

    /// Asks as it stands, and again when the server has no room.
    pub(super) async fn ask_as_is(&mut self, ask: &Ask) -> Outcome<Answer> {
        for _ in 0..TURNED_AWAY_MAX {
            let answers = self.ask_in_a_row(std::slice::from_ref(ask)).await?;
            let [answer] = <[Answer; 1]>::try_from(answers).map_err(|_| silent())?;
            let pause = answer.header("retry-after").and_then(|seconds| seconds.parse().ok());
            match pause {
                Some(seconds @ 0..=RETRY_AFTER_MAX) if answer.status == 429 => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                }
                _ => return Ok(answer),
            }
        }
        Err(Trouble::Untried("this user may not send as many requests as a check needs (429)".to_owned()))
    }

    /// Asks several things on one connection.
    pub(super) async fn ask_in_a_row(&mut self, asks: &[Ask]) -> Outcome<Vec<Answer>> {
        if self.late >= LATE_MAX || Instant::now() > self.deadline {
            return Err(Trouble::Untried("the server is too slow: not asked any more".to_owned()));
        }
        let answered = match asks {
            [ask] => self.client.ask(ask).await.map(|answer| vec![answer]),
            several => self.client.ask_in_a_row(several).await,
        };
        let answers = answered.map_err(|failure| {
            self.late += usize::from(matches!(failure, Failure::Late(_)));
            self.too_large |= matches!(failure, Failure::TooLarge);
            let asked = asks.first().map(|ask| format!("{} {}", ask.method, ask.path)).unwrap_or_default();
            Trouble::Broken(format!("{}: expected an answer: {failure}", shown(&asked)))
        })?;
        let answers: Vec<Answer> = answers.into_iter().map(|answer| self.without_token(answer)).collect();
        for (ask, answer) in asks.iter().zip(&answers) {
            self.seen.note(ask.method, answer);
        }
        Ok(answers)
    }

    /// A server that repeats the token must not make us show it.
    fn without_token(&self, mut answer: Answer) -> Answer {
        let hidden = |text: &str| text.replace(&self.token, "(the token)");
        if String::from_utf8_lossy(&answer.body).contains(&self.token) {
            answer.body = hidden(&String::from_utf8_lossy(&answer.body)).into_bytes();
        }
        answer.headers.iter_mut().for_each(|(_, value)| *value = hidden(value));
        answer
    }

    /// Asks for a list, with these parameters, of all plants, or of the first of them where those are too many.
    pub(super) async fn list(&mut self, parameters: &str) -> Outcome<Listing> {
        if self.reads_all {
            let separator = if parameters.is_empty() { "" } else { "?" };
            let listed = self.list_at(&format!("/plants{separator}{parameters}")).await;
            if listed.is_ok() || !std::mem::take(&mut self.too_large) {
                return listed;
            }
            self.reads_all = false;
        }
        let separator = if parameters.is_empty() { "" } else { "&" };
        self.list_at(&format!("/plants?limit={FRONT}{separator}{parameters}")).await
    }

    /// Asks for the list at this very address.
    pub(super) async fn list_at(&mut self, path: &str) -> Outcome<Listing> {
        let answer = self.get(path).await?;
        let plants = answer.plants()?;
        Ok(Listing { answer, plants })
    }

    pub(super) async fn get(&mut self, path: &str) -> Outcome<Answer> {
        self.may_read()?;
        self.ask(Ask::new("GET", path)).await
    }

    pub(super) fn may_read(&self) -> Outcome {
        if self.scopes.read { Ok(()) } else { Err(lacks("plants:read")) }
    }

    /// Whether plants may be created: only where they can be deleted again.
    pub(super) fn may_plant(&self) -> Outcome {
        match self.planting_stopped {
            _ if !self.scopes.write => Err(lacks("plants:write")),
            _ if !self.scopes.delete => Err(lacks("plants:delete, and what is created must be deleted again")),
            Some(why) => Err(Trouble::Untried(why.to_owned())),
            None => Ok(()),
        }
    }

    /// Sends a create whose plant, should the server accept it, has this id.
    pub(super) async fn create(&mut self, id: i64, ask: Ask) -> Outcome<Answer> {
        let ask = self.as_ourselves(ask);
        self.create_as_is(id, &ask).await
    }

    pub(super) async fn create_as_is(&mut self, id: i64, ask: &Ask) -> Outcome<Answer> {
        self.may_plant()?;
        self.ledger.about_to_plant(id);
        let answer = self.ask_as_is(ask).await?;
        self.ledger.answered(id, answer.status);
        Ok(answer)
    }

    /// Creates a plant that nobody has.
    pub(super) async fn plant(&mut self, id: i64, name: &str, tag: Option<&str>) -> Outcome {
        self.create(id, create_ask(body(id, name, tag))).await?.expect_success()
    }

    pub(super) async fn delete(&mut self, id: i64) -> Outcome<Answer> {
        self.delete_with(id, Ask::new("DELETE", format!("/plants/{id}"))).await
    }

    pub(super) async fn delete_with(&mut self, id: i64, ask: Ask) -> Outcome<Answer> {
        let answer = self.ask(ask).await?;
        match answer.status {
            200..300 => self.ledger.gone(id),
            404 => self.ledger.not_there(id),
            _ => {}
        }
        Ok(answer)
    }

    /// Deletes a plant of ours that a check is done with.
    pub(super) async fn uproot(&mut self, id: i64) -> Outcome {
        let answer = self.delete(id).await?;
        answer.expect(answer.is_success(), "that what was created can be deleted")
    }

    /// Deletes what the list shows under a name of ours, whatever its id has become.
    pub(super) async fn uproot_named(&mut self, name: &str) -> Outcome {
        let listing = self.list("include=id").await?;
        for id in listing.plants.iter().filter(|plant| plant.name == name).filter_map(|plant| plant.id) {
            self.uproot(id).await?;
        }
        Ok(())
    }

    /// The plants that stay for the whole visit.
    pub(super) async fn bed(&mut self) -> Outcome<Vec<Bedded>> {
        self.may_plant()?;
        while self.bed.len() < BED {
            let number = self.bed.len();
            let (id, name) = (self.ledger.id(), self.ledger.name(&format!("bed {number}")));
            let tag = number.is_multiple_of(2).then(|| format!("tag {number}"));
            self.plant(id, &name, tag.as_deref()).await?;
            self.bed.push(Bedded { id, name, tag });
        }
        Ok(self.bed.clone())
    }

    /// What is missing in a list that should hold the bed: where not all plants are read, nobody can tell.
    pub(super) fn expect_listed(&self, listing: &Listing, names: &[&str]) -> Outcome {
        let missing = names.iter().find(|name| !listing.plants.iter().any(|plant| plant.name == **name));
        match missing {
            None => Ok(()),
            Some(_) if !self.reads_all => Err(too_many()),
            Some(name) => Err(listing.answer.broken(format_args!("`{name}` in the list, which was created"))),
        }
    }

    /// Deletes what is still there, and looks for what is left. A create that was not answered may be done only after its
    /// plant was found missing: then everything once more.
    pub(super) async fn clean_up(&mut self) -> Outcome {
        let mut outcome = self.clear_away().await;
        if self.ledger.awaits_answers() {
            tokio::time::sleep(LATECOMERS).await;
            outcome = outcome.and(self.clear_away().await);
        }
        match outcome {
            outcome if self.ledger.remaining().is_empty() => outcome,
            Ok(()) if self.ledger.only_awaits_answers() => {
                Err(Trouble::Untried(format!("{}, whose creation was not answered", self.remains())))
            }
            outcome => {
                let why = outcome.err().map_or_else(String::new, |why| format!(" ({})", why.text()));
                Err(Trouble::Broken(format!("{}{why}", self.remains())))
            }
        }
    }

    async fn clear_away(&mut self) -> Outcome {
        let mut outcome = Ok(());
        for id in self.ledger.deletable() {
            let deleted = self.delete(id).await.and_then(|answer| {
                let gone = answer.is_success() || answer.status == 404;
                answer.expect(gone, "that what was created can be deleted")
            });
            outcome = outcome.and(deleted);
        }
        let all = self.scopes.read && self.scopes.write && self.scopes.delete;
        if all { outcome.and(self.clear_away_listed().await) } else { outcome }
    }

    /// Plants with our marker in their name are ours, whatever the server said when it got them.
    async fn clear_away_listed(&mut self) -> Outcome {
        let found = self.marked().await?;
        let kept = self.names_of_refused(&found);
        for id in found.iter().filter_map(|plant| plant.id) {
            self.delete(id).await?;
        }
        let left = self.marked().await?;
        match (kept, self.names_of_refused(&left)) {
            (None, None) => Ok(()),
            (_, Some(left)) => Err(Trouble::Broken(format!("left on the server, though deleted: {left}"))),
            (Some(kept), None) => Err(Trouble::Broken(format!("deleted only now, though refused before: {kept}"))),
        }
    }

    /// Those among our plants that must not be there; one whose create was not answered has merely come late.
    fn names_of_refused(&self, plants: &[Shown]) -> Option<String> {
        let late = |plant: &&Shown| plant.id.is_some_and(|id| self.ledger.is_unanswered(id));
        let names: Vec<String> = plants.iter().filter(|plant| !late(plant)).map(|plant| shown(&plant.name)).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    async fn marked(&mut self) -> Outcome<Vec<Shown>> {
        let listing = self.list("include=id").await?;
        Ok(listing.plants.into_iter().filter(|plant| self.is_of_this_visit(&plant.name)).collect())
    }

    pub(super) fn is_of_this_visit(&self, name: &str) -> bool {
        name.contains(self.ledger.marker())
    }

    /// What may be left, in words.
    pub(super) fn remains(&self) -> String {
        let ids: Vec<String> = self.ledger.remaining().iter().map(i64::to_string).collect();
        match ids.as_slice() {
            [] => "nothing is left on the server".to_owned(),
            ids => format!("left on the server, or perhaps: the plants {}", ids.join(", ")),
        }
    }
}

impl Trouble {
    fn text(&self) -> &str {
        match self {
            Self::Broken(text) | Self::NotApplicable(text) | Self::Untried(text) => text,
        }
    }
}

/// A create of this body, as JSON.
pub(super) fn create_ask(body: impl Into<String>) -> Ask {
    Ask::new("POST", "/plants").with("content-type", "application/json").body(body)
}

/// The body of a create.
pub(super) fn body(id: i64, name: &str, tag: Option<&str>) -> String {
    match tag {
        Some(tag) => json!({ "id": id, "name": name, "tag": tag }).to_string(),
        None => json!({ "id": id, "name": name }).to_string(),
    }
}

fn lacks(scope: &str) -> Trouble {
    Trouble::NotApplicable(format!("the token lacks {scope}"))
}

/// Where a check needs more of the list than is read.
pub(super) fn too_many() -> Trouble {
    Trouble::NotApplicable("this user has too many plants to read all: use a user of its own for checks".to_owned())
}

fn silent() -> Trouble {
    Trouble::Untried("no answer".to_owned())
}
