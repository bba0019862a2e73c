//! The statement caches of a shard: finds the current plan of a statement, or plans it.

use crate::api::{Batch, BatchStatement, ClientState, MetadataId};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::pace::{PlanPace, at_once};
use crate::plan::{Plan, PlanContext, Planned, plan, types_of_first};
use crate::prepared::{Cache, CacheMetrics, CachedStatement, StatementId, id_of, prepared_id};
use crate::request::Request;
use crate::syntax::parse;
use cluster::Metadata;
use std::cell::RefCell;
use std::rc::Rc;

/// The memory limit for plans of unprepared statements, in bytes.
const QUERY_CACHE_SIZE: usize = 4 << 20;

/// Longer texts are cached only if they are prepared. In bytes.
const MAX_KEPT_TEXT: usize = 16 << 10;

/// Longer texts are parsed off the shard, and planned with pauses. In bytes.
const LONG_TEXT: usize = 64 << 10;

/// How a prepared statement is executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// On its own. True if the client relies on the columns that it already knows
    /// (`skip_metadata`).
    Alone(bool),
    /// In a batch.
    InBatch,
}

/// The plans of a shard's statements.
pub(super) struct Plans {
    context: PlanContext,
    /// Prepared statements.
    prepared: RefCell<Cache>,
    /// Other statements.
    queries: RefCell<Cache>,
}

impl Plans {
    /// An empty cache, with a limit of `prepared` bytes for prepared statements.
    pub fn new(context: PlanContext, prepared: usize) -> Plans {
        let cache = |limit| RefCell::new(Cache::new(limit));
        Plans { context, prepared: cache(prepared), queries: cache(QUERY_CACHE_SIZE) }
    }

    /// What statements are planned with.
    pub fn context(&self) -> &PlanContext {
        &self.context
    }

    /// The metrics of the prepared statements.
    pub fn metrics(&self) -> CacheMetrics {
        self.prepared.borrow().metrics()
    }

    /// The texts of a batch's statements, joined with `; `.
    pub fn text_of(&self, batch: &Batch) -> String {
        let prepared = self.prepared.borrow();
        let text = |statement: &BatchStatement| match statement {
            BatchStatement::Query(text, _) => text.clone(),
            BatchStatement::Prepared(id, _) => prepared.get(id).map_or(String::new(), |kept| kept.text.to_string()),
        };
        batch.statements.iter().map(text).collect::<Vec<_>>().join("; ")
    }

    /// Notes that a client that prepares a statement knows what changed about it.
    pub fn inform_of_changes(&self, client: &Rc<ClientState>, id: &StatementId) {
        let kept = self.prepared.borrow().get(id);
        if let Some(kept) = kept.filter(|kept| kept.has_changed()) {
            kept.inform(client);
        }
    }

    /// Adds a statement that another shard has prepared, unless it is there. It is planned when it
    /// is first executed.
    pub fn insert_text(
        &self,
        id: StatementId,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
        result: MetadataId,
    ) {
        let mut prepared = self.prepared.borrow_mut();
        if prepared.get(&id).is_none() {
            prepared.insert_text(id, keyspace, text, dialect, result);
        }
    }

    /// The id and the plan of a statement. Plans the statement unless the cache has a current plan.
    pub async fn prepare(
        &self,
        request: &Request<'_>,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
    ) -> Result<(StatementId, Rc<Planned>), Error> {
        let metadata = request.metadata();
        let text_id = id_of(keyspace, text, dialect);
        if let Some((id, kept)) = self.prepared.borrow().of_text(&text_id)
            && let Some(planned) = kept.plan().filter(|planned| planned.is_current(&metadata))
        {
            return Ok((id, planned));
        }
        let (id, planned) = if is_long(text) {
            let planned = Box::pin(self.of_long(request, keyspace, text, dialect)).await?;
            with_id(&self.context, &metadata, keyspace, text, dialect, planned)
        } else {
            plan_prepared(&self.context, &metadata, keyspace, text, dialect)?
        };
        let mut prepared = self.prepared.borrow_mut();
        match prepared.get(&id) {
            Some(kept) => prepared.set_plan(&id, &kept, planned.clone()),
            None => drop(prepared.insert(id, keyspace, text, dialect, Some(planned.clone()))),
        }
        prepared.note_text(text_id, id);
        Ok((id, planned))
    }

    /// The prepared statement with this id, and its current plan. Fails with UNPREPARED if the
    /// cache does not have it, or if the client must prepare it again.
    #[inline]
    pub fn prepared(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        used: Use,
        metadata: &Metadata,
    ) -> Result<(Rc<CachedStatement>, Rc<Planned>), Error> {
        let kept = self.prepared.borrow().get(id);
        let Some(kept) = kept else { return Err(Error::Unprepared(*id)) };
        let planned = match kept.plan() {
            Some(planned) if planned.is_current(metadata) => planned,
            _ => self.replan_prepared(client, id, used, &kept, metadata)?,
        };
        if kept.has_changed() && kept.must_prepare(client, matches!(used, Use::Alone(true))) {
            return Err(Error::Unprepared(*id));
        }
        Ok((kept, planned))
    }

    /// Whether the prepared statement with this id writes rows. False if it has no plan here.
    pub fn is_write(&self, id: &StatementId) -> bool {
        let planned = self.prepared.borrow().get(id).and_then(|kept| kept.plan());
        planned.is_some_and(|planned| matches!(planned.plan, Plan::Modify(_) | Plan::Batch(_)))
    }

    /// Plans a prepared statement that has no plan on this shard yet, or whose tables have changed.
    /// The statement becomes unprepared if planning fails, or if values bound for the old plan
    /// could mean something else now.
    #[cold]
    fn replan_prepared(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        used: Use,
        kept: &Rc<CachedStatement>,
        metadata: &Metadata,
    ) -> Result<Rc<Planned>, Error> {
        let planned = plan_prepared(&self.context, metadata, kept.keyspace.as_deref(), &kept.text, kept.dialect);
        let mut prepared = self.prepared.borrow_mut();
        match planned {
            Ok((own, planned)) if own == *id || kept.has_same_types(&planned) => {
                prepared.set_plan(id, kept, planned.clone());
                Ok(planned)
            }
            other => {
                prepared.drop_plan(id, kept);
                // Some drivers would prepare the statements of a batch again in an endless loop,
                // whatever ids they get.
                if kept.inform(client) && used == Use::InBatch {
                    return Err(no_longer_prepared(other.err()));
                }
                Err(Error::Unprepared(*id))
            }
        }
    }

    /// Plans a long text with pauses, after parsing it off the shard. Its syntax tree takes much
    /// memory, so the texts of a shard take turns.
    #[cold]
    pub async fn of_long(
        &self,
        request: &Request<'_>,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
    ) -> Result<Planned, Error> {
        let metadata = request.metadata();
        let deadline = request.deadline(request.config.longest_timeout())?;
        let _turn = request.turn(&deadline).await?;
        let text = text.to_owned();
        let parsed = rt::offload::run(move || parse(&text)).await;
        let parsed = parsed.map_err(|error| Error::Syntax(error.to_string()))?;
        let pace = PlanPace::paced(&request.client.cancel, deadline);
        plan(&self.context, &metadata, keyspace, parsed, dialect, &pace).await
    }

    /// The plan of a statement given as a text that is not long.
    pub fn of_query(
        &self,
        metadata: &Metadata,
        client: &ClientState,
        text: &str,
        dialect: Dialect,
    ) -> Result<Rc<Planned>, Error> {
        let keyspace = client.keyspace.borrow();
        let keyspace = keyspace.as_deref();
        if text.len() > MAX_KEPT_TEXT {
            return plan_text(&self.context, metadata, keyspace, text, dialect).map(Rc::new);
        }
        let id = id_of(keyspace, text, dialect);
        let kept = self.queries.borrow().get(&id);
        if let Some(kept) = kept {
            return match kept.plan() {
                Some(planned) if planned.is_current(metadata) => Ok(planned),
                _ => replan_query(&self.context, &self.queries, &id, &kept, metadata),
            };
        }
        let planned = Rc::new(plan_text(&self.context, metadata, keyspace, text, dialect)?);
        if is_data(&planned.plan) {
            self.queries.borrow_mut().insert(id, keyspace, text, dialect, Some(planned.clone()));
        }
        Ok(planned)
    }
}

/// Whether a text is parsed off the shard, and planned with pauses, by [`Plans::of_long`].
#[inline]
pub(super) fn is_long(text: &str) -> bool {
    text.len() > LONG_TEXT
}

/// Whether a plan reads or writes rows. Only such plans are worth caching.
fn is_data(plan: &Plan) -> bool {
    matches!(plan, Plan::Select(_) | Plan::Modify(_) | Plan::Batch(_))
}

/// The error for a batch with a prepared statement whose variables have other types now, or that
/// can no longer be planned.
#[cold]
fn no_longer_prepared(why: Option<Error>) -> Error {
    Error::invalid(match why {
        None => "A statement of the batch was prepared for a table of other types: prepare it again".to_owned(),
        Some(why) => format!("A statement of the batch cannot be executed any more: {why}"),
    })
}

fn plan_text(
    context: &PlanContext,
    metadata: &Metadata,
    keyspace: Option<&str>,
    text: &str,
    dialect: Dialect,
) -> Result<Planned, Error> {
    let parsed = parse(text).map_err(|error| Error::Syntax(error.to_string()))?;
    at_once(plan(context, metadata, keyspace, parsed, dialect, &PlanPace::without_pauses()))
}

/// Plans a text, and computes the id under which it is prepared. The id uses the types with which
/// the columns were created, so ALTER of a column's type does not change it.
fn plan_prepared(
    context: &PlanContext,
    metadata: &Metadata,
    keyspace: Option<&str>,
    text: &str,
    dialect: Dialect,
) -> Result<(StatementId, Rc<Planned>), Error> {
    let planned = plan_text(context, metadata, keyspace, text, dialect)?;
    Ok(with_id(context, metadata, keyspace, text, dialect, planned))
}

/// The plan of a text, and its id.
fn with_id(
    context: &PlanContext,
    metadata: &Metadata,
    keyspace: Option<&str>,
    text: &str,
    dialect: Dialect,
    planned: Planned,
) -> (StatementId, Rc<Planned>) {
    let first = planned.was_retyped(metadata).then(|| parse(text).ok()).flatten();
    let first = first.and_then(|parsed| types_of_first(context, metadata, keyspace, parsed, dialect).ok());
    let id = match first {
        Some(variables) => prepared_id(keyspace, text, dialect, &variables, &planned, metadata),
        None => prepared_id(keyspace, text, dialect, &planned.variables.columns, &planned, metadata),
    };
    (id, Rc::new(planned))
}

/// Plans a statement given as text again after its tables have changed. Unlike a prepared
/// statement, it needs no UNPREPARED, because its values come with it.
#[cold]
fn replan_query(
    context: &PlanContext,
    cache: &RefCell<Cache>,
    id: &StatementId,
    kept: &Rc<CachedStatement>,
    metadata: &Metadata,
) -> Result<Rc<Planned>, Error> {
    let planned = Rc::new(plan_text(context, metadata, kept.keyspace.as_deref(), &kept.text, kept.dialect)?);
    cache.borrow_mut().set_plan(id, kept, planned.clone());
    Ok(planned)
}
