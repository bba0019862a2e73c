//! The language's door: one processor per shard answers the statements of that shard's connections.
//!
//! Text is parsed and planned once and kept: prepared statements under their ids, others in a smaller cache. A plan whose table
//! has changed is made anew without the client noticing. PREPARE reaches every shard before it is answered, so that the
//! statement can be executed through any connection.

use crate::api::{Answer, AnswerKind, Batch, BatchStatement, BoundValues, ClientState, Prepared, QueryParams};
use crate::attributes::Attributes;
use crate::authorize::{Permission, Resource, authorize};
use crate::batch::{self, Part, Whole};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::plan::{BatchPlan, Plan, Planned, bind, plan};
use crate::prepared::{Cache, CacheNumbers, Kept, StatementId, id_of};
use crate::request::{Config, Request};
use crate::schema::{is_schema_statement, names};
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
        Processor { coordinator, config, prepared, queries, statistics }
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
        let trace = trace_of(params);
        if let Some(trace) = &trace {
            trace.event("Parsing a statement");
        }
        let answer = match self.plan_of_query(&metadata, client, text) {
            Ok(planned) => self.run(&planned, client, params, metadata, trace.clone()).await,
            Err(error) => Err(error),
        };
        self.finish_trace(trace, client, params, "QUERY", "Execute CQL3 query", text);
        answer
    }

    /// Prepares a statement on every shard; traced under an id if one is given.
    pub async fn prepare(&self, client: &Rc<ClientState>, text: &str, trace: Option<Uuid>) -> Result<Prepared, Error> {
        self.statistics.prepare();
        let trace = trace.map(|id| Rc::new(Trace::new(id)));
        let prepared = self.prepare_everywhere(client, text, trace.as_deref()).await;
        if let Ok(prepared) = &prepared
            && prepared.result.altered.get()
            && let Some(kept) = self.prepared.borrow().get(&prepared.id)
        {
            kept.tell(client);
        }
        let parameters = vec![("query".to_owned(), text.to_owned())];
        self.save_trace(trace, client, parameters, "PREPARE", "Preparing CQL3 query");
        prepared
    }

    async fn prepare_everywhere(
        &self,
        client: &ClientState,
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
        let id = id_of(keyspace.as_deref(), text, dialect);
        note("Parsing a statement");
        let planned = self.prepare_here(id, keyspace.as_deref(), text, dialect)?;
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
                    // A shard that cannot plan it yet keeps the text, and plans when it is executed.
                    if processor.prepare_here(id, keyspace.as_deref(), text, dialect).is_err() {
                        let mut prepared = processor.prepared.borrow_mut();
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
            partition_key_markers: planned.partition_key_markers.clone(),
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
        let kept = self.prepared.borrow().get(id).ok_or(Error::Unprepared(*id))?;
        let planned = self.current(&kept, &metadata)?;
        if planned.result.altered.get() && params.skip_metadata && !kept.tell(client) {
            // It goes by columns that it may have been told before they changed: it shall prepare the statement again.
            return Err(Error::Unprepared(*id));
        }
        if params.trace.is_none() {
            return self.run(&planned, client, params, metadata, None).await;
        }
        let trace = trace_of(params);
        let answer = self.run(&planned, client, params, metadata, trace.clone()).await;
        self.finish_trace(trace, client, params, "EXECUTE", "Execute CQL3 prepared query", &kept.text);
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
                BatchStatement::Prepared(id, values) => {
                    let kept = self.prepared.borrow().get(id).ok_or(Error::Unprepared(*id))?;
                    (self.current(&kept, &metadata)?, values)
                }
            });
        }
        let mut bound = Vec::with_capacity(planned.len());
        for (planned, values) in &planned {
            bound.push(bind(values, &planned.variables.columns)?);
        }
        let role = client.role.borrow().clone();
        let mut parts = Vec::with_capacity(planned.len());
        for ((planned, _), values) in planned.iter().zip(&bound) {
            let Plan::Modify(modify) = &planned.plan else {
                return Err(Error::invalid(
                    "Invalid statement in batch: only UPDATE, INSERT and DELETE statements are allowed.",
                ));
            };
            let table = Resource::Table { keyspace: &modify.schema.keyspace, table: &modify.schema.name };
            authorize(role.as_deref(), Permission::Modify, table)?;
            parts.push(Part { modify, env: Env { values, variables: &planned.variables.columns } });
        }
        let trace = trace_of(&batch.params);
        self.statistics.batch(batch.kind, &batch.params, parts.iter().map(|part| part.modify.verb));
        let config = self.config();
        let request = self.request(&config, &metadata, client, &batch.params, trace.clone());
        let whole = Whole { kind: batch.kind, timestamp: None, timeout: None };
        let answer = batch::execute(&parts, &whole, &request).await;
        self.finish_trace(trace, client, &batch.params, "BATCH", "Execute batch of CQL3 queries", "");
        answer
    }

    fn prepare_here(
        &self,
        id: StatementId,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
    ) -> Result<Rc<Planned>, Error> {
        let metadata = self.coordinator.metadata();
        let kept = self.prepared.borrow().get(&id);
        if let Some(kept) = kept {
            return self.current(&kept, &metadata);
        }
        let planned = Rc::new(plan_text(&metadata, keyspace, text, dialect)?);
        self.prepared.borrow_mut().insert(id, keyspace, text, dialect, Some(planned.clone()));
        Ok(planned)
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
            return self.current(&kept, metadata);
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
        metadata: &'a Rc<Metadata>,
        client: &'a ClientState,
        params: &'a QueryParams,
        trace: Option<Rc<Trace>>,
    ) -> Request<'a> {
        Request { coordinator: &self.coordinator, metadata, config, client, params, trace }
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
        let request = self.request(&config, &metadata, client, params, trace);
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
            Plan::Batch(batch) => {
                self.statistics.batch(batch.kind, params, batch.statements.iter().map(|modify| modify.verb));
                Box::pin(run_batch(batch, env, &request)).await
            }
            Plan::Use(keyspace) => self.use_keyspace(client, keyspace, &metadata),
            Plan::Truncate(statement, attributes) => {
                let keyspace = names::keyspace_of(client, &statement.table)?;
                allowed(client, Permission::Modify, &keyspace, &statement.table.name)?;
                let timeout = attributes.timeout(env, config.truncate_timeout)?;
                Box::pin(schema::truncate(client, statement, Some(timeout))).await
            }
            Plan::Describe(statement) => {
                authorize(client.role.borrow().as_deref(), Permission::Describe, Resource::AllKeyspaces)?;
                describe::describe(client, statement)
            }
            Plan::Schema(statement) => {
                let permission = permission_of(statement);
                authorize(client.role.borrow().as_deref(), permission, Resource::AllKeyspaces)?;
                if !is_schema_statement(statement) {
                    return Err(Error::not_supported("This statement"));
                }
                Box::pin(schema::execute(client, statement, &config.guardrails)).await
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

    /// Writes a trace down, after the request.
    fn finish_trace(
        &self,
        trace: Option<Rc<Trace>>,
        client: &ClientState,
        params: &QueryParams,
        command: &'static str,
        request: &str,
        text: &str,
    ) {
        if trace.is_none() {
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
        self.save_trace(trace, client, parameters, command, request);
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
        let Some(service) = rt::shard::try_service::<MetadataService>() else { return };
        let elapsed = i64::from(trace.elapsed_micros()) / 1000;
        let session = trace_store::Session {
            client: client.address.map(|address| address.ip()),
            coordinator: service.info().broadcast_address,
            command,
            request: request.to_owned(),
            parameters,
            started_at: rt::time::wall_micros() / 1000 - elapsed,
        };
        rt::task::spawn(trace_store::save(self.coordinator.clone(), trace, session)).detach();
    }
}

fn trace_of(params: &QueryParams) -> Option<Rc<Trace>> {
    params.trace.map(|id| Rc::new(Trace::new(id)))
}

/// Whether a plan speaks of data, so that it is worth keeping.
fn is_data(plan: &Plan) -> bool {
    matches!(plan, Plan::Select(_) | Plan::Modify(_) | Plan::Batch(_))
}

fn plan_text(metadata: &Metadata, keyspace: Option<&str>, text: &str, dialect: Dialect) -> Result<Planned, Error> {
    let parsed = parse(text).map_err(|error| Error::Syntax(error.to_string()))?;
    plan(metadata, keyspace, parsed, dialect)
}

impl Processor {
    /// The plan of a kept statement, made anew if its tables have changed.
    #[inline]
    fn current(&self, kept: &Kept, metadata: &Metadata) -> Result<Rc<Planned>, Error> {
        match kept.plan() {
            Some(planned) if planned.is_current(metadata) => Ok(planned),
            _ => self.planned_anew(kept, metadata),
        }
    }

    #[cold]
    fn planned_anew(&self, kept: &Kept, metadata: &Metadata) -> Result<Rc<Planned>, Error> {
        let planned = Rc::new(plan_text(metadata, kept.keyspace.as_deref(), &kept.text, kept.dialect)?);
        kept.set_plan(planned.clone());
        Ok(planned)
    }
}

#[inline]
fn allowed(client: &ClientState, permission: Permission, keyspace: &str, table: &str) -> Result<(), Error> {
    authorize(client.role.borrow().as_deref(), permission, Resource::Table { keyspace, table })
}

fn permission_of(statement: &Statement) -> Permission {
    match statement {
        Statement::CreateKeyspace(_) | Statement::CreateTable(_) | Statement::CreateType(_) => Permission::Create,
        Statement::DropKeyspace(_) | Statement::DropTable(_) | Statement::DropType(_) => Permission::Drop,
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
