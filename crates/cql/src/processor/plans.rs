//! PREPARE, and the lookup of current plans in the statement caches.

use super::Processor;
use crate::api::{ClientState, Prepared, QueryParams};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::pace::{PlanPace, at_once};
use crate::plan::{Plan, PlanContext, Planned, plan, types_of_first};
use crate::prepared::{Cache, CachedStatement, StatementId, id_of, prepared_id};
use crate::slow_log::shown_text;
use crate::syntax::parse;
use cluster::Metadata;
use replica::Trace;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

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

impl Processor {
    /// Prepares a statement on every shard. With an id, the request is traced under this id.
    pub async fn prepare(&self, client: &Rc<ClientState>, text: &str, trace: Option<Uuid>) -> Result<Prepared, Error> {
        self.statistics.prepare();
        let trace = trace.map(|id| Rc::new(Trace::new(id)));
        let prepared = self.prepare_everywhere(client, text, trace.as_deref()).await;
        if let Ok(prepared) = &prepared
            && let Some(kept) = self.prepared.borrow().get(&prepared.id)
            && kept.has_changed()
        {
            kept.inform(client);
        }
        let parameters = vec![("query".to_owned(), shown_text(text))];
        self.save_trace(trace, client, parameters, "PREPARE", "Preparing CQL3 query");
        prepared
    }

    async fn prepare_everywhere(
        &self,
        client: &Rc<ClientState>,
        text: &str,
        trace: Option<&Trace>,
    ) -> Result<Prepared, Error> {
        let note = |what: &str| {
            if let Some(trace) = trace {
                trace.event(what);
            }
        };
        let keyspace = client.keyspace.borrow().clone();
        let dialect = self.config.borrow().dialect;
        note("Parsing a statement");
        let (id, planned) = self.prepare_here(client, keyspace.as_deref(), text, dialect).await?;
        note("Planned on this shard, sending the statement to the other shards");
        let result = planned.result.id();
        let shared: Arc<(Option<String>, String)> = Arc::new((keyspace, text.to_owned()));
        let (here, processors) = (rt::shard::this(), self.shards.processor);
        rt::shard::call_all(move || {
            let shared = shared.clone();
            async move {
                if rt::shard::this() != here
                    && let Some(processor) = processors.try_get()
                {
                    // The other shards plan the statement when they first execute it.
                    let (keyspace, text) = &*shared;
                    let mut prepared = processor.prepared.borrow_mut();
                    if prepared.get(&id).is_none() {
                        prepared.insert_text(id, keyspace.as_deref(), text, dialect, result);
                    }
                }
            }
        })
        .await;
        note("All shards have the statement");
        Ok(Prepared {
            id,
            markers: planned.variables.clone(),
            partition_key_markers: planned.partition_key_markers.to_vec(),
            result: planned.result.clone(),
            // Conditional statements are refused earlier.
            conditional: false,
            warnings: Vec::new(),
        })
    }

    /// The id and the plan of a statement. Plans the statement unless the cache has a current plan.
    async fn prepare_here(
        &self,
        client: &ClientState,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
    ) -> Result<(StatementId, Rc<Planned>), Error> {
        let metadata = self.coordinator.metadata();
        let text_id = id_of(keyspace, text, dialect);
        if let Some((id, kept)) = self.prepared.borrow().of_text(&text_id)
            && let Some(planned) = kept.plan().filter(|planned| planned.is_current(&metadata))
        {
            return Ok((id, planned));
        }
        let (id, planned) = if text.len() > LONG_TEXT {
            let planned = Box::pin(self.plan_long(&metadata, client, text, &QueryParams::default())).await?;
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
    pub(super) fn prepared(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        used: Use,
        metadata: &Metadata,
    ) -> Result<(Rc<CachedStatement>, Rc<Planned>), Error> {
        let kept = self.prepared.borrow().get(id).ok_or(Error::Unprepared(*id))?;
        let planned = match kept.plan() {
            Some(planned) if planned.is_current(metadata) => planned,
            _ => self.replan_prepared(client, id, used, &kept, metadata)?,
        };
        if kept.has_changed() && kept.must_prepare(client, matches!(used, Use::Alone(true))) {
            return Err(Error::Unprepared(*id));
        }
        Ok((kept, planned))
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

    /// The plan of a statement given as text. A long text is parsed off the shard, and planned with
    /// pauses.
    pub(super) async fn plan_of_text(
        &self,
        metadata: &Rc<Metadata>,
        client: &ClientState,
        text: &str,
        params: &QueryParams,
    ) -> Result<Rc<Planned>, Error> {
        match text.len() > LONG_TEXT {
            true => Box::pin(self.plan_long(metadata, client, text, params)).await.map(Rc::new),
            false => self.plan_of_query(metadata, client, text),
        }
    }

    /// Parses a text off the shard, and plans it with pauses. Its syntax tree takes much memory, so
    /// the texts of a shard take turns.
    #[cold]
    async fn plan_long(
        &self,
        metadata: &Rc<Metadata>,
        client: &ClientState,
        text: &str,
        params: &QueryParams,
    ) -> Result<Planned, Error> {
        let (config, keyspace) = (self.config(), client.keyspace.borrow().clone());
        let request = self.request(&config, metadata.clone(), client, params, None);
        let deadline = request.deadline(config.longest_timeout())?;
        let _turn = request.turn(&deadline).await?;
        let text = text.to_owned();
        let parsed = rt::offload::run(move || parse(&text)).await;
        let parsed = parsed.map_err(|error| Error::Syntax(error.to_string()))?;
        let pace = PlanPace::paced(&client.cancel, deadline);
        plan(&self.context, metadata, keyspace.as_deref(), parsed, config.dialect, &pace).await
    }

    /// The plan of a statement given as a text that is not long.
    fn plan_of_query(&self, metadata: &Metadata, client: &ClientState, text: &str) -> Result<Rc<Planned>, Error> {
        let keyspace = client.keyspace.borrow();
        let keyspace = keyspace.as_deref();
        let dialect = self.config.borrow().dialect;
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
