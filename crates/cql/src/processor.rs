//! The language's door: one processor per shard answers the statements of that shard's connections.
//!
//! Text is parsed and planned once and kept: prepared statements under their ids, others in a smaller cache. A plan whose table
//! has changed is made again before it is executed. If values bound for the plan before could mean something else, or if clients
//! should learn of the change, the answer is the error UNPREPARED, and drivers prepare the statement again. PREPARE reaches every
//! shard before it is answered, so that the statement can be executed through any connection.

use crate::api::{Answer, AnswerKind, Batch, BatchStatement, BoundValues, ClientState, Prepared, QueryParams};
use crate::attributes::Attributes;
use crate::authorize::{Permission, Resource, authorize};
use crate::batch::{self, Part, Whole};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::plan::{BatchPlan, Plan, Planned, bind, plan};
use crate::prepared::{Cache, CacheNumbers, Kept, StatementId, id_of, prepared_id};
use crate::request::{Config, Request};
use crate::schema::{is_schema_statement, names};
use crate::slow_log::{self, SlowLog, SlowLogSettings, SlowRequest};
use crate::statistics::{StatementNumbers, Statistics};
use crate::syntax::{Statement, parse};
use crate::term::Env;
use crate::trace_store;
use crate::{describe, schema, system};
use cluster::{Coordinator, Metadata, MetadataService};
use replica::Trace;
use std::cell::RefCell;
use std::rc::Rc;
use uuid::Uuid;

/// Bytes that the plans of unprepared statements may take.
const QUERY_CACHE_SIZE: usize = 4 << 20;
/// Longer texts are not kept unless they are prepared.
const MAX_KEPT_TEXT: usize = 16 << 10;

/// Answers statements on one shard.
pub struct Processor {
    coordinator: Rc<Coordinator>,
    config: RefCell<Rc<Config>>,
    prepared: RefCell<Cache>,
    queries: RefCell<Cache>,
    statistics: Statistics,
    slow_log: SlowLog,
}

/// How a prepared statement is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Executed, perhaps (true) by a client that relies on the columns that it knows.
    Alone(bool),
    /// In a batch.
    InBatch,
}

/// A request that is answered, as it is written down.
struct Finished<'a> {
    client: &'a ClientState,
    params: &'a QueryParams,
    command: &'static str,
    request: &'static str,
    /// The statement; those of a batch one after the other.
    text: &'a str,
    /// What was executed; nothing if it could not be planned.
    planned: &'a [Rc<Planned>],
}

impl Processor {
    /// The processor of this shard, with default limits.
    pub fn new(coordinator: Rc<Coordinator>) -> Self {
        Processor::with_config(coordinator, Config::default())
    }

    /// The processor of this shard.
    pub fn with_config(coordinator: Rc<Coordinator>, mut config: Config) -> Self {
        let statistics = Statistics::default();
        config.guardrails.violations = statistics.violations.clone();
        let prepared = RefCell::new(Cache::new(config.prepared_statements_cache_size));
        let queries = RefCell::new(Cache::new(QUERY_CACHE_SIZE));
        let config = RefCell::new(Rc::new(config));
        Processor { coordinator, config, prepared, queries, statistics, slow_log: SlowLog::default() }
    }

    /// The limits that hold now.
    pub fn config(&self) -> Rc<Config> {
        self.config.borrow().clone()
    }

    /// Other limits from the next request on; that of the prepared statements stays.
    pub fn set_config(&self, mut config: Config) {
        config.guardrails.violations = self.statistics.violations.clone();
        *self.config.borrow_mut() = Rc::new(config);
    }

    /// Which requests of this shard are logged as slow.
    pub fn slow_log(&self) -> SlowLogSettings {
        self.slow_log.settings()
    }

    /// Logs others as slow from the next request on.
    pub fn set_slow_log(&self, settings: SlowLogSettings) {
        self.slow_log.set(settings);
    }

    /// The statements that are prepared on this shard, in numbers.
    pub fn prepared_statements(&self) -> CacheNumbers {
        self.prepared.borrow().numbers()
    }

    /// What was executed on this shard, in numbers.
    pub fn statistics(&self) -> StatementNumbers {
        self.statistics.numbers()
    }

    /// Executes a statement given as text.
    #[inline]
    pub async fn query(&self, client: &Rc<ClientState>, text: &str, params: &QueryParams) -> Result<Answer, Error> {
        let metadata = self.coordinator.metadata();
        let trace = self.trace_of(params);
        let steps = trace.as_ref().and_then(|trace| self.steps_of(trace, params));
        if let Some(steps) = &steps {
            steps.event("Parsing a statement");
        }
        let planned = self.plan_of_query(&metadata, client, text);
        let answer = match &planned {
            Ok(planned) => self.run(planned, client, params, metadata, steps).await,
            Err(error) => Err(error.clone()),
        };
        if let Some(trace) = trace {
            let planned = planned.as_ref().map_or(&[][..], std::slice::from_ref);
            let (command, request) = ("QUERY", "Execute CQL3 query");
            self.finished(trace, Finished { client, params, command, request, text, planned });
        }
        answer
    }

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
        let parameters = vec![("query".to_owned(), text.to_owned())];
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
        let (own, planned) = self.prepare_here(None, keyspace.as_deref(), text, dialect)?;
        let known = self.prepared.borrow().id_known_to(client, &id_of(keyspace.as_deref(), text, dialect));
        let id = known.unwrap_or(own);
        note("Planned on this shard, now on the others");
        let shared: std::sync::Arc<(Option<String>, String)> = std::sync::Arc::new((keyspace, text.to_owned()));
        let here = rt::shard::this();
        rt::shard::call_all(move || {
            let shared = shared.clone();
            async move {
                if rt::shard::this() != here
                    && let Some(processor) = rt::shard::try_service::<Processor>()
                {
                    let (keyspace, text) = &*shared;
                    // A shard whose metadata are not the same yet keeps the text, and plans when it is executed.
                    let planned = processor.prepare_here(Some(id), keyspace.as_deref(), text, dialect);
                    let mut prepared = processor.prepared.borrow_mut();
                    if planned.is_err() && prepared.get(&id).is_none() {
                        prepared.insert(id, keyspace.as_deref(), text, dialect, None);
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

    /// Executes a prepared statement.
    #[inline]
    pub async fn execute(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        params: &QueryParams,
    ) -> Result<Answer, Error> {
        let metadata = self.coordinator.metadata();
        let (kept, planned) = self.prepared(client, id, Use::Alone(params.skip_metadata), &metadata)?;
        let Some(trace) = self.trace_of(params) else {
            return self.run(&planned, client, params, metadata, None).await;
        };
        let answer = self.run(&planned, client, params, metadata, self.steps_of(&trace, params)).await;
        let (text, planned) = (&*kept.text, std::slice::from_ref(&planned));
        let (command, request) = ("EXECUTE", "Execute CQL3 prepared query");
        self.finished(trace, Finished { client, params, command, request, text, planned });
        answer
    }

    /// Executes a batch.
    #[inline]
    pub async fn batch(&self, client: &Rc<ClientState>, batch: &Batch) -> Result<Answer, Error> {
        let metadata = self.coordinator.metadata();
        let mut planned: Vec<(Rc<Planned>, &BoundValues)> = Vec::with_capacity(batch.statements.len());
        for statement in &batch.statements {
            planned.push(match statement {
                BatchStatement::Query(text, values) => (self.plan_of_query(&metadata, client, text)?, values),
                BatchStatement::Prepared(id, values) => (self.prepared(client, id, Use::InBatch, &metadata)?.1, values),
            });
        }
        let mut bound = Vec::with_capacity(planned.len());
        for (planned, values) in &planned {
            bound.push(bind(values, &planned.variables.columns)?);
        }
        let role = client.role.borrow().clone();
        let mut parts = Vec::with_capacity(planned.len());
        for ((planned, _), values) in planned.iter().zip(&bound) {
            let modify = match &planned.plan {
                Plan::Modify(modify) => modify,
                Plan::Configure(modify) | Plan::Unwritable(modify) => {
                    return Err(system::not_writable(&modify.schema, batch.params.consistency));
                }
                _ => {
                    return Err(Error::invalid(
                        "Invalid statement in batch: only UPDATE, INSERT and DELETE statements are allowed.",
                    ));
                }
            };
            let table = Resource::Table { keyspace: &modify.schema.keyspace, table: &modify.schema.name };
            authorize(role.as_deref(), Permission::Modify, table)?;
            parts.push(Part { modify, env: Env { values, variables: &planned.variables.columns } });
        }
        let trace = self.trace_of(&batch.params);
        let steps = trace.as_ref().and_then(|trace| self.steps_of(trace, &batch.params));
        self.statistics.batch(batch.kind, &batch.params, parts.iter().map(|part| part.modify.verb));
        let config = self.config();
        let request = self.request(&config, metadata, client, &batch.params, steps);
        let whole = Whole { kind: batch.kind, timestamp: None, timeout: None };
        let answer = batch::execute(&parts, &whole, &request).await;
        if let Some(trace) = trace {
            let text = self.text_of(batch);
            let planned: Vec<Rc<Planned>> = planned.iter().map(|(planned, _)| planned.clone()).collect();
            let (params, text, planned) = (&batch.params, &*text, &planned[..]);
            let (command, request) = ("BATCH", "Execute batch of CQL3 queries");
            self.finished(trace, Finished { client, params, command, request, text, planned });
        }
        answer
    }

    /// The statements of a batch, one after the other.
    fn text_of(&self, batch: &Batch) -> String {
        let prepared = self.prepared.borrow();
        let text = |statement: &BatchStatement| match statement {
            BatchStatement::Query(text, _) => text.clone(),
            BatchStatement::Prepared(id, _) => prepared.get(id).map_or(String::new(), |kept| kept.text.to_string()),
        };
        batch.statements.iter().map(text).collect::<Vec<_>>().join("; ")
    }

    /// Plans a statement and keeps it under its id. Refused if another id is wanted, which another shard gave it.
    fn prepare_here(
        &self,
        wanted: Option<StatementId>,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
    ) -> Result<(StatementId, Rc<Planned>), Error> {
        let metadata = self.coordinator.metadata();
        let planned = Rc::new(plan_text(&metadata, keyspace, text, dialect)?);
        let id = prepared_id(keyspace, text, dialect, &planned);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != id) {
            return Err(Error::Unprepared(wanted));
        }
        let kept = self.prepared.borrow().get(&id);
        match kept.as_ref().map(|kept| (kept, kept.plan())) {
            Some((_, Some(current))) if current.is_current(&metadata) => return Ok((id, current)),
            Some((kept, _)) => self.prepared.borrow_mut().set_plan(&id, kept, planned.clone()),
            None => drop(self.prepared.borrow_mut().insert(id, keyspace, text, dialect, Some(planned.clone()))),
        }
        Ok((id, planned))
    }

    /// The prepared statement of an id with its current plan; UNPREPARED if there is none, or if the client has to prepare it again.
    #[inline]
    fn prepared(
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

    /// Plans a prepared statement again, after its tables have changed. If that fails, or values bound for the plan before could mean
    /// something else now, the statement is no longer prepared.
    #[cold]
    fn planned_again(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        used: Use,
        kept: &Rc<Kept>,
        metadata: &Metadata,
    ) -> Result<Rc<Planned>, Error> {
        let planned = plan_text(metadata, kept.keyspace.as_deref(), &kept.text, kept.dialect);
        let mut prepared = self.prepared.borrow_mut();
        match planned {
            Ok(planned) if kept.takes(id, &planned) => {
                let planned = Rc::new(planned);
                prepared.set_plan(id, kept, planned.clone());
                Ok(planned)
            }
            _ => {
                prepared.drop_plan(id, kept);
                // Some drivers prepare the statements of a batch again without end, whatever ids they get.
                if kept.tell(client) && used == Use::InBatch {
                    return Err(Error::invalid(
                        "A statement of the batch was prepared for a table of other types: prepare it again",
                    ));
                }
                Err(Error::Unprepared(*id))
            }
        }
    }

    fn plan_of_query(&self, metadata: &Metadata, client: &ClientState, text: &str) -> Result<Rc<Planned>, Error> {
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

    fn request<'a>(
        &'a self,
        config: &'a Config,
        metadata: Rc<Metadata>,
        client: &'a ClientState,
        params: &'a QueryParams,
        trace: Option<Rc<Trace>>,
    ) -> Request<'a> {
        let held = RefCell::new(Some(metadata));
        Request { coordinator: &self.coordinator, held, config, client, params, trace }
    }

    #[inline]
    async fn run(
        &self,
        planned: &Planned,
        client: &Rc<ClientState>,
        params: &QueryParams,
        metadata: Rc<Metadata>,
        trace: Option<Rc<Trace>>,
    ) -> Result<Answer, Error> {
        let values = bind(&params.values, &planned.variables.columns)?;
        let env = Env { values: &values, variables: &planned.variables.columns };
        let config = self.config();
        let request = self.request(&config, metadata, client, params, trace);
        match &planned.plan {
            Plan::Select(select) => {
                self.statistics.select(select, params);
                allowed(client, Permission::Select, &select.schema.keyspace, &select.schema.name)?;
                let answer = select.execute(env, &request).await?;
                self.statistics.selected(&answer);
                Ok(answer)
            }
            Plan::Modify(modify) => {
                self.statistics.modification(modify, params);
                allowed(client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
                modify.execute(env, &request).await
            }
            Plan::Configure(modify) => {
                self.statistics.modification(modify, params);
                allowed(client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
                Box::pin(system::config::update(modify, env, &request)).await?;
                Ok(Answer::new(AnswerKind::Void))
            }
            Plan::Unwritable(modify) => {
                self.statistics.modification(modify, params);
                allowed(client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
                request.check_write_level()?;
                Err(system::not_writable(&modify.schema, params.consistency))
            }
            Plan::Batch(batch) => {
                self.statistics.batch(batch.kind, params, batch.statements.iter().map(|modify| modify.verb));
                Box::pin(run_batch(batch, env, &request)).await
            }
            Plan::Use(keyspace) => self.use_keyspace(client, keyspace, &request.metadata()),
            Plan::Truncate(truncate) => {
                let (statement, attributes) = &**truncate;
                let keyspace = names::keyspace_of(client, &statement.table)?;
                allowed(client, Permission::Modify, &keyspace, &statement.table.name)?;
                let timeout = attributes.timeout(env, config.truncate_timeout)?;
                request.let_go_of_metadata();
                Box::pin(schema::truncate(client, statement, Some(timeout))).await
            }
            Plan::Describe(statement) => {
                authorize(client.role.borrow().as_deref(), Permission::Describe, Resource::AllKeyspaces)?;
                describe::describe(client, statement)
            }
            Plan::Schema(schema) => {
                let (statement, attributes) = &**schema;
                let permission = permission_of(statement);
                authorize(client.role.borrow().as_deref(), permission, Resource::AllKeyspaces)?;
                if !is_schema_statement(statement) {
                    return Err(Error::not_supported("This statement"));
                }
                let drop_time = attributes.timestamp(env, rt::time::wall_micros(), false)?;
                Box::pin(schema::execute(client, statement, drop_time, &config.guardrails)).await
            }
        }
    }

    fn use_keyspace(&self, client: &ClientState, keyspace: &str, metadata: &Metadata) -> Result<Answer, Error> {
        if !crate::system::is_virtual(keyspace) && metadata.keyspace(keyspace).is_none() {
            return Err(Error::invalid(format!("Keyspace '{keyspace}' does not exist")));
        }
        *client.keyspace.borrow_mut() = Some(keyspace.to_owned());
        Ok(Answer::new(AnswerKind::SetKeyspace(keyspace.to_owned())))
    }

    /// Where the time of a request is taken: it is traced, or slow ones are logged.
    #[inline]
    fn trace_of(&self, params: &QueryParams) -> Option<Rc<Trace>> {
        match params.trace {
            Some(id) => Some(Rc::new(Trace::new(id))),
            None if self.slow_log.settings().enabled => Some(Rc::new(Trace::new(rt::random::time_uuid()))),
            None => None,
        }
    }

    /// Where the steps of a request are recorded: nowhere if only its time is wanted.
    fn steps_of(&self, trace: &Rc<Trace>, params: &QueryParams) -> Option<Rc<Trace>> {
        let wanted = params.trace.is_some() || !self.slow_log.settings().fast;
        wanted.then(|| trace.clone())
    }

    /// Writes down, after a request, the trace that was asked for, and if it was slow, that and a record of it.
    fn finished(&self, trace: Rc<Trace>, finished: Finished<'_>) {
        let Finished { client, params, command, request, text, planned } = finished;
        let duration = trace.elapsed_micros();
        let admitted = self.slow_log.admit(duration);
        if params.trace.is_none() && admitted.is_none() {
            return;
        }
        let mut parameters = vec![
            ("consistency_level".to_owned(), params.consistency.name().to_owned()),
            ("query".to_owned(), text.to_owned()),
        ];
        if let Some(level) = params.serial_consistency {
            parameters.push(("serial_consistency_level".to_owned(), level.name().to_owned()));
        }
        if let Some(size) = params.page_size {
            parameters.push(("page_size".to_owned(), size.to_string()));
        }
        let Some(admitted) = admitted else {
            return self.save_trace(Some(trace), client, parameters, command, request);
        };
        let Some(session) = session_of(&trace, client, parameters, command, request) else { return };
        let mut tables: Vec<String> = planned.iter().flat_map(|planned| planned.plan.table_names()).collect();
        tables.sort();
        tables.dedup();
        let slow = SlowRequest {
            session: trace.id,
            started_at: session.started_at,
            duration,
            command: text.to_owned(),
            parameters: session.parameters.clone(),
            client: session.client,
            node: session.coordinator,
            tables,
            username: client.role.borrow().clone(),
        };
        let (coordinator, ttl) = (self.coordinator.clone(), self.slow_log.settings().ttl_seconds);
        let trace_ttl = params.trace.is_none().then_some(ttl);
        rt::task::spawn(async move {
            slow_log::save(&coordinator, slow, ttl).await;
            drop(admitted);
            trace_store::save(&coordinator, trace, session, trace_ttl).await;
        })
        .detach();
    }

    fn save_trace(
        &self,
        trace: Option<Rc<Trace>>,
        client: &ClientState,
        parameters: Vec<(String, String)>,
        command: &'static str,
        request: &str,
    ) {
        let Some(trace) = trace else { return };
        let Some(session) = session_of(&trace, client, parameters, command, request) else { return };
        let coordinator = self.coordinator.clone();
        rt::task::spawn(async move { trace_store::save(&coordinator, trace, session, None).await }).detach();
    }
}

/// What a trace that ends now was about; nothing on a shard without metadata.
fn session_of(
    trace: &Trace,
    client: &ClientState,
    parameters: Vec<(String, String)>,
    command: &'static str,
    request: &str,
) -> Option<trace_store::Session> {
    let service = rt::shard::try_service::<MetadataService>()?;
    let elapsed = i64::from(trace.elapsed_micros()) / 1000;
    Some(trace_store::Session {
        client: client.address.map(|address| address.ip()),
        coordinator: service.info().broadcast_address,
        command,
        request: request.to_owned(),
        parameters,
        started_at: rt::time::wall_micros() / 1000 - elapsed,
    })
}

/// Whether a plan speaks of data, so that it is worth keeping.
fn is_data(plan: &Plan) -> bool {
    matches!(plan, Plan::Select(_) | Plan::Modify(_) | Plan::Batch(_))
}

fn plan_text(metadata: &Metadata, keyspace: Option<&str>, text: &str, dialect: Dialect) -> Result<Planned, Error> {
    let parsed = parse(text).map_err(|error| Error::Syntax(error.to_string()))?;
    plan(metadata, keyspace, parsed, dialect)
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

#[inline]
fn allowed(client: &ClientState, permission: Permission, keyspace: &str, table: &str) -> Result<(), Error> {
    authorize(client.role.borrow().as_deref(), permission, Resource::Table { keyspace, table })
}

fn permission_of(statement: &Statement) -> Permission {
    match statement {
        Statement::CreateKeyspace(_) | Statement::CreateTable(_) | Statement::CreateType(_) => Permission::Create,
        Statement::DropKeyspace(_)
        | Statement::DropTable(_)
        | Statement::DropType(_)
        | Statement::DropUnsupported(_) => Permission::Drop,
        _ => Permission::Alter,
    }
}

async fn run_batch(plan: &BatchPlan, env: Env<'_>, request: &Request<'_>) -> Result<Answer, Error> {
    for modify in &plan.statements {
        allowed(request.client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
    }
    let parts: Vec<Part<'_>> = plan.statements.iter().map(|modify| Part { modify, env }).collect();
    let attributes: &Attributes = &plan.attributes;
    let now = rt::time::wall_micros();
    let whole = Whole {
        kind: plan.kind,
        timestamp: attributes.timestamp(env, now, request.config.restrict_future_timestamp)?,
        timeout: attributes
            .timeout
            .as_ref()
            .map(|_| attributes.timeout(env, request.config.write_timeout))
            .transpose()?,
    };
    batch::execute(&parts, &whole, request).await
}
