//! Planning: resolves a parsed statement against the metadata, and does all work that does not
//! depend on bound values.
//!
//! A plan is valid for the schema versions that it was made with ([`Planned::is_current`]). After a
//! schema change, the statement is planned again from its text.

use crate::api::{BatchKind, BoundValue, BoundValues, ColumnSpec, ResultMetadata};
use crate::attributes::Attributes;
use crate::describe;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::fragments::{FragmentShards, FragmentsTable};
use crate::modify::{self, Modify};
use crate::pace::{PLAN_WORK, PlanPace, at_once};
use crate::request::Request;
use crate::restrictions::{Partition, Restrictions, add_in_lists};
use crate::schema::{self, first_types, names};
use crate::select::{self, Select};
use crate::source::VirtualTable;
use crate::syntax::ast::{self, AlterTableAction, Modification, QualifiedName};
use crate::syntax::{ParsedStatement, Statement};
use crate::system::{self, SystemTables};
use crate::term::{Variables, large};
use cluster::Metadata;
use model::{SchemaVersion, TableId, TableSchema};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;
use uuid::Uuid;

/// A planned statement.
pub struct Planned {
    /// What to execute.
    pub plan: Plan,
    /// The bind variables.
    pub variables: Rc<ResultMetadata>,
    /// The variables that the statement refers to several times, and how often.
    pub(crate) repeated: Box<[(u16, u32)]>,
    /// The variables that are IN lists.
    pub(crate) in_lists: Box<[u16]>,
    /// Whether a variable is of a type with parts.
    pub(crate) has_parts: bool,
    /// For each partition key column in order, the variable that is bound to it. Empty unless every
    /// one has a variable.
    pub partition_key_markers: Box<[u16]>,
    /// The columns of the result.
    pub result: Rc<ResultMetadata>,
    /// The identities of the user types of the bind variables. Types without an identity are left
    /// out.
    pub(crate) user_types: Box<[Uuid]>,
    /// The tables that the plan depends on, with their schema versions.
    pub(crate) tables: SmallVec<[(TableId, SchemaVersion); 1]>,
}

/// The effect of a statement.
pub enum Plan {
    /// SELECT.
    Select(Box<Select>),
    /// INSERT, UPDATE, DELETE.
    Modify(Box<Modify>),
    /// A change of a setting in `system.config`.
    Configure(Box<Modify>),
    /// A write to another virtual table, or a batch that includes a write to any. It is refused at
    /// execution, as ScyllaDB's replicas do.
    Unwritable(Box<Modify>),
    /// BEGIN BATCH.
    Batch(Box<BatchPlan>),
    /// USE.
    Use(Box<str>),
    /// TRUNCATE of a table with an explicit keyspace, with its timeout.
    Truncate(Box<(ast::Truncate, Attributes)>),
    /// DESCRIBE, and the keyspace of the session.
    Describe(Box<(ast::Describe, Option<Box<str>>)>),
    /// A schema change with an explicit keyspace. The attributes hold the timestamp of ALTER TABLE
    /// ... DROP if it is a bind marker.
    Schema(Box<(Statement, Attributes)>),
}

impl Plan {
    /// The tables that the plan reads or writes, as `keyspace.table`. Empty for statements about
    /// anything else.
    pub fn table_names(&self) -> Vec<String> {
        let schemas: Vec<&TableSchema> = match self {
            Plan::Select(select) => vec![&select.schema],
            Plan::Modify(modify) | Plan::Configure(modify) | Plan::Unwritable(modify) => vec![&modify.schema],
            Plan::Batch(batch) => batch.statements.iter().map(|modify| &*modify.schema).collect(),
            Plan::Use(_) | Plan::Truncate(_) | Plan::Describe(_) | Plan::Schema(_) => Vec::new(),
        };
        schemas.into_iter().map(|schema| format!("{}.{}", schema.keyspace, schema.name)).collect()
    }
}

impl Plan {
    /// The variables that are IN lists.
    fn in_lists(&self) -> Box<[u16]> {
        let mut out = Vec::new();
        let mut add = |modify: &Modify| add_in_lists(&modify.partition, &modify.clustering, &[], &mut out);
        match self {
            Plan::Select(select) => {
                let Restrictions { partition, clustering, filters } = &select.restrictions;
                add_in_lists(partition, clustering, filters, &mut out);
            }
            Plan::Modify(modify) | Plan::Configure(modify) | Plan::Unwritable(modify) => add(modify),
            Plan::Batch(batch) => batch.statements.iter().for_each(add),
            Plan::Use(_) | Plan::Truncate(_) | Plan::Describe(_) | Plan::Schema(_) => {}
        }
        out.into()
    }
}

/// A planned BATCH.
pub struct BatchPlan {
    /// Its kind.
    pub kind: BatchKind,
    /// Its USING clause.
    pub attributes: Attributes,
    /// Its statements.
    pub statements: Box<[Modify]>,
}

impl Planned {
    /// Whether columns of the tables have other types than those with which they were created.
    pub fn was_retyped(&self, metadata: &Metadata) -> bool {
        let mut tables = self.tables.iter().filter_map(|(id, _)| metadata.table_by_id(*id));
        tables.any(|table| first_types::differ(&table.schema))
    }

    /// Whether the tables still have the schema versions that the plan was made with.
    #[inline]
    pub fn is_current(&self, metadata: &Metadata) -> bool {
        self.tables.iter().all(|(id, version)| metadata.table_by_id(*id).is_some_and(|t| t.schema.version == *version))
    }
}

/// The virtual tables that statements may name.
pub struct PlanContext {
    /// The system tables.
    pub system: SystemTables,
    /// What MUTATION_FRAGMENTS reads.
    pub fragments: FragmentShards,
}

/// The table of a statement, stored or virtual.
struct ResolvedTable {
    schema: Rc<TableSchema>,
    virtual_table: Option<Rc<dyn VirtualTable>>,
}

fn find(
    context: &PlanContext,
    metadata: &Metadata,
    current: Option<&str>,
    name: &QualifiedName,
) -> Result<ResolvedTable, Error> {
    let keyspace = match (&name.keyspace, current) {
        (Some(keyspace), _) => keyspace.as_str(),
        (None, Some(current)) => current,
        (None, None) => return Err(names::no_keyspace()),
    };
    if system::is_virtual(keyspace) {
        let found = context.system.table(keyspace, &name.name);
        let table = found.ok_or_else(|| Error::invalid(format!("unconfigured table {}", name.name)))?;
        return Ok(ResolvedTable { schema: table.schema().clone(), virtual_table: Some(table) });
    }
    let table = names::table(metadata, keyspace, &name.name)?;
    Ok(ResolvedTable { schema: table.schema.clone(), virtual_table: None })
}

/// The virtual table that shows the mutation fragments of a table.
fn fragments_of(context: &PlanContext, found: ResolvedTable) -> ResolvedTable {
    let table = FragmentsTable::new(context.fragments, &found.schema, found.virtual_table);
    ResolvedTable { schema: table.schema().clone(), virtual_table: Some(Rc::new(table)) }
}

/// The table that a SELECT without FROM reads.
fn one_row() -> QualifiedName {
    QualifiedName { keyspace: Some(ast::Name::new("system")), name: ast::Name::new("one_row") }
}

/// Plans a statement in a session with this keyspace.
pub async fn plan(
    context: &PlanContext,
    metadata: &Metadata,
    keyspace: Option<&str>,
    parsed: ParsedStatement,
    dialect: Dialect,
    pace: &PlanPace<'_>,
) -> Result<Planned, Error> {
    let ParsedStatement { statement, markers } = parsed;
    let variables = Variables::new(metadata, &markers, dialect, pace)?;
    let mut planner =
        Planner { context, metadata, keyspace, variables, tables: SmallVec::new(), by_first_types: false };
    let plan = planner.statement(statement).await?;
    let Planner { variables, tables, .. } = planner;
    let repeated = variables.repeated();
    let variables = ResultMetadata { columns: variables.finish()?, ..Default::default() };
    let key_of = |partition: &Partition| partition.key_variables().unwrap_or_default();
    let partition_key_markers = match &plan {
        Plan::Select(select) => key_of(&select.restrictions.partition),
        Plan::Modify(modify) if modify.json.is_none() => key_of(&modify.partition),
        _ => Box::default(),
    };
    let result = match &plan {
        Plan::Select(select) => select.metadata.clone(),
        Plan::Describe(describe) => describe::result_metadata(&describe.0, describe.1.as_deref()),
        _ => Rc::new(ResultMetadata::default()),
    };
    let user_types = user_types_of(metadata, &variables.columns);
    let has_parts = variables.columns.iter().any(|variable| variable.ty.has_parts());
    let in_lists = if has_parts { plan.in_lists() } else { Box::default() };
    let variables = Rc::new(variables);
    Ok(Planned { plan, variables, repeated, in_lists, has_parts, partition_key_markers, result, user_types, tables })
}

/// The identities of the variables' user types. Nested types are not needed: a user type cannot be
/// dropped and created again while another type contains it.
fn user_types_of(metadata: &Metadata, variables: &[ColumnSpec]) -> Box<[Uuid]> {
    let mut found = Vec::new();
    for variable in variables {
        variable.ty.each_user_type(&mut |ty| found.extend(metadata.type_identity(&ty.keyspace, &ty.name)));
    }
    found.into()
}

/// The variables that the statement would have if all columns had the types with which they were
/// created.
pub fn types_of_first(
    context: &PlanContext,
    metadata: &Metadata,
    keyspace: Option<&str>,
    parsed: ParsedStatement,
    dialect: Dialect,
) -> Result<Box<[ColumnSpec]>, Error> {
    let ParsedStatement { statement, markers } = parsed;
    let pace = PlanPace::without_pauses();
    let variables = Variables::new(metadata, &markers, dialect, &pace)?;
    let mut planner = Planner { context, metadata, keyspace, variables, tables: SmallVec::new(), by_first_types: true };
    at_once(planner.statement(statement))?;
    planner.variables.finish()
}

/// The classes of custom indexes that ScyllaDB has. The full name of the SAI class is an alias of
/// `sai`.
const INDEX_CLASSES: &[&str] = &["vector_index", "fulltext_index", "sai", "storageattachedindex"];

/// The error for CREATE CUSTOM INDEX with this class.
fn custom_index(class: Option<&str>) -> Error {
    let Some(class) = class else { return Error::invalid("CUSTOM index requires specifying the index class") };
    let short = class.rsplit('.').next().unwrap_or(class).to_ascii_lowercase();
    match INDEX_CLASSES.contains(&short.as_str()) {
        true => Error::not_supported(&format!("CREATE CUSTOM INDEX with the class '{class}'")),
        false => Error::invalid(format!("Non-supported custom class '{class}' provided")),
    }
}

struct Planner<'a> {
    context: &'a PlanContext,
    metadata: &'a Metadata,
    keyspace: Option<&'a str>,
    variables: Variables<'a>,
    tables: SmallVec<[(TableId, SchemaVersion); 1]>,
    /// Whether columns are treated as having the types with which they were created.
    by_first_types: bool,
}

impl Planner<'_> {
    /// Finds a table by name. Without a keyspace in the name, it is in the session's keyspace.
    fn find(&self, name: &QualifiedName) -> Result<ResolvedTable, Error> {
        let found = find(self.context, self.metadata, self.keyspace, name)?;
        if self.by_first_types && found.virtual_table.is_none() && first_types::differ(&found.schema) {
            let schema = first_types::schema(self.metadata, &found.schema);
            return Ok(ResolvedTable { schema: Rc::new(schema), virtual_table: None });
        }
        Ok(found)
    }

    async fn statement(&mut self, mut statement: Statement) -> Result<Plan, Error> {
        // Names get the keyspace of the session now: a prepared statement may be executed in a
        // session with another one. Statements about rows find their tables now.
        schema::qualify(&mut statement, self.keyspace)?;
        Ok(match statement {
            Statement::Select(statement) => {
                let found = match &statement.from {
                    Some(from) => self.find(&from.table)?,
                    None if statement.selection == ast::Selection::All => {
                        return Err(Error::invalid("SELECT * needs a FROM clause"));
                    }
                    None => find(self.context, self.metadata, None, &one_row())?,
                };
                self.depends_on(&found);
                let found = match &statement.from {
                    Some(from) if from.mutation_fragments => fragments_of(self.context, found),
                    _ => found,
                };
                let planning = select::plan::plan(&found.schema, found.virtual_table, &statement, &mut self.variables);
                let select = planning.await;
                self.variables.pace.discard(statement);
                Plan::Select(Box::new(select?))
            }
            Statement::Insert(statement) => self.modification_plan(Modification::Insert(statement)).await?,
            Statement::Update(statement) => self.modification_plan(Modification::Update(statement)).await?,
            Statement::Delete(statement) => self.modification_plan(Modification::Delete(statement)).await?,
            Statement::Batch(statement) => {
                let plan = self.batch(&statement).await;
                self.variables.pace.discard(statement);
                plan?
            }
            Statement::Use(name) => Plan::Use(name.into_string().into()),
            Statement::Truncate(statement) => {
                let attributes = Attributes::plan(&statement.attributes, &mut self.variables)?;
                Plan::Truncate(Box::new((statement, attributes)))
            }
            Statement::Describe(statement) => Plan::Describe(Box::new((statement, self.keyspace.map(Box::from)))),
            Statement::Unsupported(statement) => return Err(Error::not_supported(&statement.to_string())),
            Statement::CreateCustomIndex(index) => return Err(custom_index(index.class.as_deref())),
            other => {
                let attributes = self.drop_timestamp(&other)?;
                Plan::Schema(Box::new((other, attributes)))
            }
        })
    }

    /// The timestamp of ALTER TABLE ... DROP USING TIMESTAMP, if it is a bind marker.
    fn drop_timestamp(&mut self, statement: &Statement) -> Result<Attributes, Error> {
        let Statement::AlterTable(altered) = statement else { return Ok(Attributes::default()) };
        let AlterTableAction::Drop { timestamp: Some(marker @ ast::Term::Marker(_)), .. } = &altered.action else {
            return Ok(Attributes::default());
        };
        if let Ok(found) = self.find(&altered.name) {
            self.variables.of_table(&found.schema);
        }
        let attributes = ast::Attributes { timestamp: Some(marker.clone()), ..Default::default() };
        Attributes::plan(&attributes, &mut self.variables)
    }

    fn depends_on(&mut self, found: &ResolvedTable) {
        let table = (found.schema.id, found.schema.version);
        if found.virtual_table.is_none() && !self.tables.contains(&table) {
            self.tables.push(table);
        }
    }

    async fn modification_plan(&mut self, statement: Modification) -> Result<Plan, Error> {
        let plan = self.plan_of(&statement).await;
        self.variables.pace.discard(statement);
        plan
    }

    async fn plan_of(&mut self, statement: &Modification) -> Result<Plan, Error> {
        let name = modify::plan::table_of(statement);
        let keyspace = name.keyspace.as_ref().map(|keyspace| keyspace.as_str()).or(self.keyspace);
        if keyspace.is_some_and(|keyspace| system::config::is_config(keyspace, &name.name)) {
            let found = self.find(name)?;
            let modify = modify::plan::plan(&found.schema, statement, &mut self.variables).await?;
            return Ok(Plan::Configure(Box::new(modify)));
        }
        let (modify, is_virtual) = self.modification(statement).await?;
        let modify = Box::new(modify);
        Ok(if is_virtual { Plan::Unwritable(modify) } else { Plan::Modify(modify) })
    }

    /// Plans a modification. Also returns whether its table is virtual.
    async fn modification(&mut self, statement: &Modification) -> Result<(Modify, bool), Error> {
        let found = self.find(modify::plan::table_of(statement))?;
        self.depends_on(&found);
        let modify = modify::plan::plan(&found.schema, statement, &mut self.variables).await?;
        Ok((modify, found.virtual_table.is_some()))
    }

    async fn batch(&mut self, statement: &ast::Batch) -> Result<Plan, Error> {
        let kind = match statement.kind {
            ast::BatchKind::Logged => BatchKind::Logged,
            ast::BatchKind::Unlogged => BatchKind::Unlogged,
            ast::BatchKind::Counter => BatchKind::Counter,
        };
        if statement.attributes.ttl.is_some() {
            return Err(Error::invalid("Global TTL on the BATCH statement is not supported."));
        }
        let attributes = Attributes::plan(&statement.attributes, &mut self.variables)?;
        let mut statements = Vec::with_capacity(statement.statements.len());
        let mut first_virtual = None;
        for inner in &statement.statements {
            self.variables.pace.worked(4 * PLAN_WORK).await?;
            let (modify, is_virtual) = self.modification(inner).await?;
            if attributes.timestamp.is_some() && modify.attributes.timestamp.is_some() {
                return Err(Error::invalid("Timestamp must be set either on BATCH or individual statements"));
            }
            if modify.attributes.timeout.is_some() {
                return Err(Error::invalid("Timeout must be set on BATCH, not on individual statements"));
            }
            if is_virtual {
                first_virtual.get_or_insert(statements.len());
            }
            statements.push(modify);
        }
        if let Some(place) = first_virtual {
            return Ok(Plan::Unwritable(Box::new(statements.swap_remove(place))));
        }
        let each = statements.iter().map(|modify| modify.counter);
        crate::batch::check_counters(kind, attributes.timestamp.is_some(), each)?;
        Ok(Plan::Batch(Box::new(BatchPlan { kind, attributes, statements: statements.into() })))
    }
}

/// Named values up to this many are searched one by one; of more, a map is made.
const FEW_NAMES: usize = 16;

impl Planned {
    /// The values of a request in the order of the statement's variables. `limit`: the bytes of
    /// values that a statement may refer to if it refers to values several times.
    pub fn bind<'v>(&self, values: &'v BoundValues, limit: usize) -> Result<Cow<'v, [BoundValue]>, Error> {
        let bound = in_order(values, &self.variables.columns)?;
        if !self.repeated.is_empty() || matches!(values, BoundValues::Named(_)) {
            self.check_repeated(&bound, limit)?;
        }
        Ok(bound)
    }

    /// Whether values of the request are checked off the shard.
    #[inline]
    pub fn has_large(&self, values: &[BoundValue]) -> bool {
        self.has_parts && values.iter().any(large::is_large)
    }

    /// Checks the large values of a request off the shard.
    #[cold]
    pub async fn check_large<'v>(
        &self,
        values: Cow<'v, [BoundValue]>,
        request: &Request<'_>,
    ) -> Result<Cow<'v, [BoundValue]>, Error> {
        let _turn = request.turn_of_large().await?;
        large::checked(&values, &self.variables.columns, &self.in_lists).await.map(Cow::Owned)
    }

    /// Each reference to a value may copy it, and validates it.
    #[cold]
    fn check_repeated(&self, values: &[BoundValue], limit: usize) -> Result<(), Error> {
        let again = self.repeated.iter().map(|(number, times)| values[*number as usize].len() * (*times as usize - 1));
        let once: usize = values.iter().map(BoundValue::len).sum();
        match again.fold(once, usize::saturating_add) {
            total if total > limit => Err(Error::invalid(format!(
                "The statement refers to {total} bytes of bound values, counting each reference to a value. The limit is {limit}, four \
                 times the largest mutation"
            ))),
            _ => Ok(()),
        }
    }
}

fn in_order<'v>(values: &'v BoundValues, variables: &[ColumnSpec]) -> Result<Cow<'v, [BoundValue]>, Error> {
    let wrong = |got: usize| {
        Error::invalid(format!("Invalid amount of bind variables: expected {} received {got}", variables.len()))
    };
    match values {
        BoundValues::Positional(values) if values.len() == variables.len() => Ok(Cow::Borrowed(values)),
        BoundValues::Positional(values) => Err(wrong(values.len())),
        BoundValues::Named(values) if values.len() <= FEW_NAMES => {
            let find = |name: &str| values.iter().find(|(known, _)| known == name).map(|(_, value)| value);
            by_name(variables, find)
        }
        BoundValues::Named(values) => {
            // Ordered: clients choose the names. The first of several values with one name counts.
            let map: BTreeMap<&str, &BoundValue> =
                values.iter().rev().map(|(name, value)| (name.as_str(), value)).collect();
            by_name(variables, |name| map.get(name).copied())
        }
    }
}

fn by_name<'v>(
    variables: &[ColumnSpec],
    find: impl Fn(&str) -> Option<&'v BoundValue>,
) -> Result<Cow<'v, [BoundValue]>, Error> {
    let missing = |name: &str| Error::invalid(format!("Missing value for bind variable {name}"));
    let found = variables.iter().map(|variable| find(&variable.name).cloned().ok_or_else(|| missing(&variable.name)));
    found.collect::<Result<Vec<_>, _>>().map(Cow::Owned)
}
