//! Statements and the plans that are kept for them: PREPARE, and finding a plan that holds now.

use super::Processor;
use crate::api::{ClientState, Prepared};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::plan::{Plan, Planned, plan, types_of_first};
use crate::prepared::{Cache, Kept, StatementId, id_of, prepared_id};
use crate::slow_log::shown_text;
use crate::syntax::parse;
use cluster::Metadata;
use replica::Trace;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Longer texts are not kept unless they are prepared.
const MAX_KEPT_TEXT: usize = 16 << 10;

/// How a prepared statement is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Executed, perhaps (true) by a client that relies on the columns that it knows.
    Alone(bool),
    /// In a batch.
    InBatch,
}

impl Processor {
    /// Prepares a statement on every shard; traced under an id if one is given.
    pub async fn prepare(&self, client: &Rc<ClientState>, text: &str, trace: Option<Uuid>) -> Result<Prepared, Error> {
        self.statistics.prepare();
        let trace = trace.map(|id| Rc::new(Trace::new(id)));
        let prepared = self.prepare_everywhere(client, text, trace.as_deref()).await;
        if let Ok(prepared) = &prepared
            && let Some(kept) = self.prepared.borrow().get(&prepared.id)
            && kept.has_changed()
        {
            kept.tell(client);
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
        let (id, planned) = self.prepare_here(keyspace.as_deref(), text, dialect)?;
        note("Planned on this shard, now given to the others");
        let result = planned.result.id();
        let shared: Arc<(Option<String>, String)> = Arc::new((keyspace, text.to_owned()));
        let here = rt::shard::this();
        rt::shard::call_all(move || {
            let shared = shared.clone();
            async move {
                if rt::shard::this() != here
                    && let Some(processor) = rt::shard::try_service::<Processor>()
                {
                    // A shard plans a statement when it executes it for the first time.
                    let (keyspace, text) = &*shared;
                    let mut prepared = processor.prepared.borrow_mut();
                    if prepared.get(&id).is_none() {
                        prepared.insert_text(id, keyspace.as_deref(), text, dialect, result);
                    }
                }
            }
        })
        .await;
        note("Every shard has the statement");
        Ok(Prepared {
            id,
            markers: planned.variables.clone(),
            partition_key_markers: planned.partition_key_markers.to_vec(),
            result: planned.result.clone(),
            // Statements with a condition are refused before they get here.
            conditional: false,
            warnings: Vec::new(),
        })
    }

    /// The id and the plan of a statement; makes them unless they are kept and current.
    fn prepare_here(
        &self,
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
        let (id, planned) = plan_prepared(&metadata, keyspace, text, dialect)?;
        let mut prepared = self.prepared.borrow_mut();
        match prepared.get(&id) {
            Some(kept) => prepared.set_plan(&id, &kept, planned.clone()),
            None => drop(prepared.insert(id, keyspace, text, dialect, Some(planned.clone()))),
        }
        prepared.note_text(text_id, id);
        Ok((id, planned))
    }

    /// The prepared statement of an id with its current plan; UNPREPARED if there is none, or if the client has to prepare it again.
    #[inline]
    pub(super) fn prepared(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        used: Use,
        metadata: &Metadata,
    ) -> Result<(Rc<Kept>, Rc<Planned>), Error> {
        let kept = self.prepared.borrow().get(id).ok_or(Error::Unprepared(*id))?;
        let planned = match kept.plan() {
            Some(planned) if planned.is_current(metadata) => planned,
            _ => self.planned_again(client, id, used, &kept, metadata)?,
        };
        if kept.has_changed() && kept.must_prepare(client, matches!(used, Use::Alone(true))) {
            return Err(Error::Unprepared(*id));
        }
        Ok((kept, planned))
    }

    /// Plans a prepared statement that has no plan here yet, or whose tables have changed. If that fails, or values bound for
    /// the plan before could mean something else now, the statement is no longer prepared.
    #[cold]
    fn planned_again(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        used: Use,
        kept: &Rc<Kept>,
        metadata: &Metadata,
    ) -> Result<Rc<Planned>, Error> {
        let planned = plan_prepared(metadata, kept.keyspace.as_deref(), &kept.text, kept.dialect);
        let mut prepared = self.prepared.borrow_mut();
        match planned {
            Ok((own, planned)) if own == *id || kept.has_same_types(&planned) => {
                prepared.set_plan(id, kept, planned.clone());
                Ok(planned)
            }
            other => {
                prepared.drop_plan(id, kept);
                // Some drivers prepare the statements of a batch again without end, whatever ids they get.
                if kept.tell(client) && used == Use::InBatch {
                    return Err(no_longer_prepared(other.err()));
                }
                Err(Error::Unprepared(*id))
            }
        }
    }

    /// The plan of a statement given as text.
    pub(super) fn plan_of_query(
        &self,
        metadata: &Metadata,
        client: &ClientState,
        text: &str,
    ) -> Result<Rc<Planned>, Error> {
        let keyspace = client.keyspace.borrow();
        let keyspace = keyspace.as_deref();
        let dialect = self.config.borrow().dialect;
        if text.len() > MAX_KEPT_TEXT {
            return plan_text(metadata, keyspace, text, dialect).map(Rc::new);
        }
        let id = id_of(keyspace, text, dialect);
        let kept = self.queries.borrow().get(&id);
        if let Some(kept) = kept {
            return match kept.plan() {
                Some(planned) if planned.is_current(metadata) => Ok(planned),
                _ => planned_anew(&self.queries, &id, &kept, metadata),
            };
        }
        let planned = Rc::new(plan_text(metadata, keyspace, text, dialect)?);
        if is_data(&planned.plan) {
            self.queries.borrow_mut().insert(id, keyspace, text, dialect, Some(planned.clone()));
        }
        Ok(planned)
    }
}

/// Whether a plan speaks of data, so that it is worth keeping.
fn is_data(plan: &Plan) -> bool {
    matches!(plan, Plan::Select(_) | Plan::Modify(_) | Plan::Batch(_))
}

/// Why a batch with a statement that was prepared for other types, or that cannot be planned any more, is refused.
#[cold]
fn no_longer_prepared(why: Option<Error>) -> Error {
    Error::invalid(match why {
        None => "A statement of the batch was prepared for a table of other types: prepare it again".to_owned(),
        Some(why) => format!("A statement of the batch cannot be executed any more: {why}"),
    })
}

fn plan_text(metadata: &Metadata, keyspace: Option<&str>, text: &str, dialect: Dialect) -> Result<Planned, Error> {
    let parsed = parse(text).map_err(|error| Error::Syntax(error.to_string()))?;
    plan(metadata, keyspace, parsed, dialect)
}

/// The plan of a text, and the id that it is prepared under: that of the types with which the columns were created, so that
/// ALTER of a type changes no id.
fn plan_prepared(
    metadata: &Metadata,
    keyspace: Option<&str>,
    text: &str,
    dialect: Dialect,
) -> Result<(StatementId, Rc<Planned>), Error> {
    let planned = plan_text(metadata, keyspace, text, dialect)?;
    let first = planned.was_retyped(metadata).then(|| parse(text).ok()).flatten();
    let first = first.and_then(|parsed| types_of_first(metadata, keyspace, parsed, dialect).ok());
    let id = match first {
        Some(variables) => prepared_id(keyspace, text, dialect, &variables, &planned),
        None => prepared_id(keyspace, text, dialect, &planned.variables.columns, &planned),
    };
    Ok((id, Rc::new(planned)))
}

/// The plan of a statement given as text, made again after its tables have changed: its values come with it.
#[cold]
fn planned_anew(
    cache: &RefCell<Cache>,
    id: &StatementId,
    kept: &Rc<Kept>,
    metadata: &Metadata,
) -> Result<Rc<Planned>, Error> {
    let planned = Rc::new(plan_text(metadata, kept.keyspace.as_deref(), &kept.text, kept.dialect)?);
    cache.borrow_mut().set_plan(id, kept, planned.clone());
    Ok(planned)
}
