//! CREATE, ALTER and DROP of keyspaces, tables and types, and the first words of unsupported ones.

use super::{K, Kind, M, Parser, Result};
use crate::syntax::ast::{
    AlterKeyspace, AlterTable, AlterTableAction, AlterType, AlterTypeAction, ColumnDefinition, CreateKeyspace,
    CreateTable, CreateType, DropKeyspace, DropTable, DropType, DropUnsupported, Literal, Name, OptionValue,
    PrimaryKey, QualifiedName, SchemaOption, Statement, TypeName, Unsupported, UnsupportedKind,
};

/// The kind of object that follows CREATE, ALTER or DROP.
enum Subject {
    Keyspace,
    Table,
    Type,
    Unsupported(Unsupported, usize),
}

impl Parser<'_> {
    pub(super) fn create(&mut self) -> Result<Statement> {
        let subject = match (self.peek_at(1), self.peek_at(2), self.peek_at(3)) {
            (Kind::Word(K::Keyspace | K::Schema, _), ..) => Subject::Keyspace,
            (Kind::Word(K::Table, _), ..) => Subject::Table,
            (Kind::Word(K::Type, _), ..) => Subject::Type,
            (Kind::Word(K::Index, _), ..) => Subject::Unsupported(Unsupported::CreateIndex, 2),
            (Kind::Word(K::Custom, _), Kind::Word(K::Index, _), _) => return self.create_custom_index(),
            (Kind::Word(K::Materialized, _), Kind::Word(K::View, _), _) => {
                Subject::Unsupported(Unsupported::CreateView, 3)
            }
            (Kind::Word(K::Function, _), ..) => Subject::Unsupported(Unsupported::CreateFunction, 2),
            (Kind::Word(K::Aggregate, _), ..) => Subject::Unsupported(Unsupported::CreateAggregate, 2),
            (Kind::Word(K::Or, _), Kind::Word(K::Replace, _), Kind::Word(K::Function, _)) => {
                Subject::Unsupported(Unsupported::CreateFunction, 4)
            }
            (Kind::Word(K::Or, _), Kind::Word(K::Replace, _), Kind::Word(K::Aggregate, _)) => {
                Subject::Unsupported(Unsupported::CreateAggregate, 4)
            }
            (Kind::Word(K::Trigger, _), ..) => Subject::Unsupported(Unsupported::CreateTrigger, 2),
            (Kind::Word(K::Role, _), ..) => Subject::Unsupported(Unsupported::CreateRole, 2),
            (Kind::Word(K::User, _), ..) => Subject::Unsupported(Unsupported::CreateUser, 2),
            (Kind::Word(K::ServiceLevel, _), ..) => Subject::Unsupported(Unsupported::CreateServiceLevel, 2),
            (Kind::Word(K::Service, _), Kind::Word(K::Level, _), _) => {
                Subject::Unsupported(Unsupported::CreateServiceLevel, 3)
            }
            _ => return self.no_subject(),
        };
        match subject {
            Subject::Unsupported(statement, words) => self.unsupported(statement, words),
            Subject::Keyspace => self.past_subject().create_keyspace().map(Statement::CreateKeyspace),
            Subject::Table => self.past_subject().create_table().map(Statement::CreateTable),
            Subject::Type => self.past_subject().create_type().map(Statement::CreateType),
        }
    }

    pub(super) fn alter(&mut self) -> Result<Statement> {
        let subject = match (self.peek_at(1), self.peek_at(2)) {
            (Kind::Word(K::Keyspace | K::Schema, _), _) => Subject::Keyspace,
            (Kind::Word(K::Table, _), _) => Subject::Table,
            (Kind::Word(K::Type, _), _) => Subject::Type,
            (Kind::Word(K::Materialized, _), Kind::Word(K::View, _)) => Subject::Unsupported(Unsupported::AlterView, 3),
            (Kind::Word(K::Role, _), _) => Subject::Unsupported(Unsupported::AlterRole, 2),
            (Kind::Word(K::User, _), _) => Subject::Unsupported(Unsupported::AlterUser, 2),
            (Kind::Word(K::ServiceLevel, _), _) => Subject::Unsupported(Unsupported::AlterServiceLevel, 2),
            (Kind::Word(K::Service, _), Kind::Word(K::Level, _)) => {
                Subject::Unsupported(Unsupported::AlterServiceLevel, 3)
            }
            _ => return self.no_subject(),
        };
        match subject {
            Subject::Unsupported(statement, words) => self.unsupported(statement, words),
            Subject::Keyspace => self.past_subject().alter_keyspace().map(Statement::AlterKeyspace),
            Subject::Table => self.past_subject().alter_table().map(Statement::AlterTable),
            Subject::Type => self.past_subject().alter_type().map(Statement::AlterType),
        }
    }

    pub(super) fn drop_statement(&mut self) -> Result<Statement> {
        let subject = match (self.peek_at(1), self.peek_at(2)) {
            (Kind::Word(K::Keyspace | K::Schema, _), _) => Subject::Keyspace,
            (Kind::Word(K::Table, _), _) => Subject::Table,
            (Kind::Word(K::Type, _), _) => Subject::Type,
            (Kind::Word(K::Index, _), _) => return self.drop_unsupported(UnsupportedKind::Index, 2),
            (Kind::Word(K::Materialized, _), Kind::Word(K::View, _)) => {
                return self.drop_unsupported(UnsupportedKind::View, 3);
            }
            (Kind::Word(K::Function, _), _) => return self.drop_unsupported(UnsupportedKind::Function, 2),
            (Kind::Word(K::Aggregate, _), _) => return self.drop_unsupported(UnsupportedKind::Aggregate, 2),
            (Kind::Word(K::Trigger, _), _) => Subject::Unsupported(Unsupported::DropTrigger, 2),
            (Kind::Word(K::Role, _), _) => return self.drop_unsupported(UnsupportedKind::Role, 2),
            (Kind::Word(K::User, _), _) => return self.drop_unsupported(UnsupportedKind::User, 2),
            (Kind::Word(K::ServiceLevel, _), _) => return self.drop_unsupported(UnsupportedKind::ServiceLevel, 2),
            (Kind::Word(K::Service, _), Kind::Word(K::Level, _)) => {
                return self.drop_unsupported(UnsupportedKind::ServiceLevel, 3);
            }
            _ => return self.no_subject(),
        };
        if let Subject::Unsupported(statement, words) = subject {
            return self.unsupported(statement, words);
        }
        self.past_subject();
        let if_exists = self.eat_if_exists()?;
        Ok(match subject {
            Subject::Keyspace => Statement::DropKeyspace(DropKeyspace { name: self.keyspace_name()?, if_exists }),
            Subject::Table => Statement::DropTable(DropTable { name: self.table_name()?, if_exists }),
            _ => Statement::DropType(DropType { name: self.user_type_name()?, if_exists }),
        })
    }

    /// DROP of a kind of object whose name starts after the first `words` tokens.
    fn drop_unsupported(&mut self, kind: UnsupportedKind, words: usize) -> Result<Statement> {
        for _ in 0..words {
            self.advance();
        }
        let if_exists = self.eat_if_exists()?;
        let mut arguments = None;
        let name = match kind {
            UnsupportedKind::Index => self.qualified("index")?,
            UnsupportedKind::View => self.table_name()?,
            UnsupportedKind::Function | UnsupportedKind::Aggregate => {
                let name = self.function_name()?;
                if self.eat(M::Open) {
                    let none = self.is_mark(0, M::Close);
                    arguments = Some(if none { Vec::new() } else { self.list(Self::type_name)? });
                    self.expect(M::Close)?;
                }
                name
            }
            UnsupportedKind::Role | UnsupportedKind::User | UnsupportedKind::ServiceLevel => {
                let name = match self.peek() {
                    Kind::String | Kind::DollarString => Name::new(self.string()?),
                    _ => self.schema_name("role")?,
                };
                QualifiedName { keyspace: None, name }
            }
        };
        Ok(Statement::DropUnsupported(DropUnsupported { kind, name, arguments, if_exists }))
    }

    /// Skips the verb and the next word.
    fn past_subject(&mut self) -> &mut Self {
        self.advance();
        self.advance();
        self
    }

    /// The error if the words after the verb are not a known kind of object.
    fn no_subject(&mut self) -> Result<Statement> {
        self.advance();
        match self.peek() {
            Kind::Word(K::Materialized, _) => {
                self.advance();
                self.expect_words(&[K::View])?;
            }
            Kind::Word(K::Service, _) => {
                self.advance();
                self.expect_words(&[K::Level])?;
            }
            Kind::Word(K::Custom, _) => {
                self.advance();
                self.expect_words(&[K::Index])?;
            }
            Kind::Word(K::Or, _) => {
                self.advance();
                self.expect_words(&[K::Replace])?;
            }
            _ => {}
        }
        Err(self.no_alternative())
    }

    fn create_keyspace(&mut self) -> Result<CreateKeyspace> {
        let if_not_exists = self.eat_if_not_exists()?;
        let name = self.keyspace_name()?;
        let options = if self.eat_word(K::With) { self.and_list(Self::option)? } else { Vec::new() };
        Ok(CreateKeyspace { name, if_not_exists, options })
    }

    fn alter_keyspace(&mut self) -> Result<AlterKeyspace> {
        let if_exists = self.eat_if_exists()?;
        let name = self.keyspace_name()?;
        self.expect_words(&[K::With])?;
        Ok(AlterKeyspace { name, if_exists, options: self.and_list(Self::option)? })
    }

    fn create_table(&mut self) -> Result<CreateTable> {
        let if_not_exists = self.eat_if_not_exists()?;
        let mut table = CreateTable {
            name: self.table_name()?,
            if_not_exists,
            columns: Vec::new(),
            primary_keys: Vec::new(),
            clustering_order: Vec::new(),
            compact_storage: false,
            options: Vec::new(),
        };
        self.expect(M::Open)?;
        self.table_element(&mut table)?;
        while self.eat(M::Comma) {
            if !self.is_mark(0, M::Comma) && !self.is_mark(0, M::Close) {
                self.table_element(&mut table)?;
            }
        }
        self.expect(M::Close)?;
        if self.eat_word(K::With) {
            self.and_list(|parser| parser.table_option(&mut table))?;
        }
        Ok(table)
    }

    /// Parses a column or the PRIMARY KEY clause.
    fn table_element(&mut self, table: &mut CreateTable) -> Result<()> {
        if self.eat_word(K::Primary) {
            self.expect_words(&[K::Key])?;
            self.expect(M::Open)?;
            let partition = if self.is_mark(0, M::Open) { self.names_in_parentheses()? } else { vec![self.name()?] };
            let mut clustering = Vec::new();
            while self.eat(M::Comma) {
                clustering.push(self.name()?);
            }
            self.expect(M::Close)?;
            table.primary_keys.push(PrimaryKey { partition, clustering });
            return Ok(());
        }
        let column = self.column_definition()?;
        if self.eat_word(K::Primary) {
            self.expect_words(&[K::Key])?;
            table.primary_keys.push(PrimaryKey { partition: vec![column.name.clone()], clustering: Vec::new() });
        }
        table.columns.push(column);
        Ok(())
    }

    fn column_definition(&mut self) -> Result<ColumnDefinition> {
        let name = self.name()?;
        let type_name = self.type_name()?;
        let is_ttl = self.eat_word(K::Ttl);
        let is_static = self.eat_word(K::Static);
        Ok(ColumnDefinition { name, type_name, is_static, is_ttl })
    }

    fn table_option(&mut self, table: &mut CreateTable) -> Result<()> {
        if self.is_word(0, K::Compact) && self.is_word(1, K::Storage) {
            self.advance();
            self.advance();
            table.compact_storage = true;
        } else if self.is_word(0, K::Clustering) && self.is_word(1, K::Order) {
            self.advance();
            self.advance();
            self.expect_words(&[K::By])?;
            self.expect(M::Open)?;
            let order = self.list(|parser| {
                let column = parser.name()?;
                let descending = parser.eat_word(K::Desc);
                if !descending && !parser.eat_word(K::Asc) {
                    return Err(parser.no_alternative());
                }
                Ok((column, descending))
            })?;
            self.expect(M::Close)?;
            table.clustering_order.extend(order);
        } else {
            table.options.push(self.option()?);
        }
        Ok(())
    }

    /// `name = value`.
    fn option(&mut self) -> Result<SchemaOption> {
        let name = self.name()?;
        self.expect(M::Equal)?;
        if self.is_mark(0, M::OpenCurly) {
            return Ok(SchemaOption { name, value: self.nested(Self::option_map)? });
        }
        if let Some(literal) = self.eat_literal()? {
            return Ok(SchemaOption { name, value: OptionValue::Literal(literal) });
        }
        if matches!(self.peek(), Kind::Word(..)) && self.is_name(0) {
            let word = self.take_name().into_string();
            return Ok(SchemaOption { name, value: OptionValue::Literal(Literal::String(word)) });
        }
        Err(self.no_alternative())
    }

    fn option_map(&mut self) -> Result<OptionValue> {
        self.expect(M::OpenCurly)?;
        if self.eat(M::CloseCurly) {
            return Ok(OptionValue::Map(Vec::new()));
        }
        let entries = self.list(|parser| {
            let Some(key) = parser.eat_literal()? else { return Err(parser.no_alternative()) };
            parser.expect(M::Colon)?;
            Ok((key, parser.nested(Self::option_map_value)?))
        })?;
        self.expect(M::CloseCurly)?;
        Ok(OptionValue::Map(entries))
    }

    fn option_map_value(&mut self) -> Result<OptionValue> {
        if self.is_mark(0, M::OpenCurly) {
            return self.option_map();
        }
        if self.eat(M::OpenSquare) {
            if self.eat(M::CloseSquare) {
                return Ok(OptionValue::List(Vec::new()));
            }
            let values = self.list(|parser| parser.nested(Self::option_map_value))?;
            self.expect(M::CloseSquare)?;
            return Ok(OptionValue::List(values));
        }
        match self.eat_literal()? {
            Some(literal) => Ok(OptionValue::Literal(literal)),
            None => Err(self.no_alternative()),
        }
    }

    fn alter_table(&mut self) -> Result<AlterTable> {
        let if_exists = self.eat_if_exists()?;
        let name = self.table_name()?;
        let Kind::Word(verb, _) = self.peek() else { return Err(self.no_alternative()) };
        if !matches!(verb, K::Alter | K::Add | K::Drop | K::Rename | K::With | K::Ttl) {
            return Err(self.no_alternative());
        }
        self.advance();
        let action = match verb {
            K::Alter => {
                let column = self.name()?;
                self.expect_words(&[K::Type])?;
                AlterTableAction::ColumnType { column, type_name: self.type_name()? }
            }
            K::Add => {
                let if_not_exists = self.eat_if_not_exists()?;
                let columns = self.maybe_in_parentheses(Self::column_definition)?;
                AlterTableAction::Add { if_not_exists, columns }
            }
            K::Drop => {
                let if_exists = self.eat_if_exists()?;
                let columns = self.maybe_in_parentheses(Self::name)?;
                let timestamp = if self.is_word(0, K::Using) { self.using(&[K::Timestamp])?.timestamp } else { None };
                AlterTableAction::Drop { if_exists, columns, timestamp }
            }
            K::Rename => {
                let (if_exists, pairs) = self.renames()?;
                AlterTableAction::Rename { if_exists, pairs }
            }
            K::Ttl => AlterTableAction::RowTtl(if self.eat_word(K::Null) { None } else { Some(self.name()?) }),
            _ => AlterTableAction::Options(self.and_list(Self::option)?),
        };
        Ok(AlterTable { name, if_exists, action })
    }

    /// One or more items separated by commas, optionally in parentheses.
    fn maybe_in_parentheses<T>(&mut self, item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let parentheses = self.eat(M::Open);
        let items = self.list(item)?;
        if parentheses {
            self.expect(M::Close)?;
        }
        Ok(items)
    }

    /// `[IF EXISTS] a TO b AND ...`.
    fn renames(&mut self) -> Result<(bool, Vec<(Name, Name)>)> {
        let if_exists = self.eat_if_exists()?;
        let pairs = self.and_list(|parser| {
            let from = parser.name()?;
            parser.expect_words(&[K::To])?;
            Ok((from, parser.name()?))
        })?;
        Ok((if_exists, pairs))
    }

    fn create_type(&mut self) -> Result<CreateType> {
        let if_not_exists = self.eat_if_not_exists()?;
        let name = self.user_type_name()?;
        self.expect(M::Open)?;
        let mut fields = vec![self.field()?];
        while self.eat(M::Comma) {
            if !self.is_mark(0, M::Comma) && !self.is_mark(0, M::Close) {
                fields.push(self.field()?);
            }
        }
        self.expect(M::Close)?;
        Ok(CreateType { name, if_not_exists, fields })
    }

    fn field(&mut self) -> Result<(Name, TypeName)> {
        Ok((self.name()?, self.type_name()?))
    }

    fn alter_type(&mut self) -> Result<AlterType> {
        let if_exists = self.eat_if_exists()?;
        let name = self.user_type_name()?;
        let action = if self.eat_word(K::Alter) {
            let field = self.name()?;
            self.expect_words(&[K::Type])?;
            AlterTypeAction::FieldType { field, type_name: self.type_name()? }
        } else if self.eat_word(K::Add) {
            let if_not_exists = self.eat_if_not_exists()?;
            let (field, type_name) = self.field()?;
            AlterTypeAction::Add { if_not_exists, field, type_name }
        } else if self.eat_word(K::Rename) {
            let (if_exists, pairs) = self.renames()?;
            AlterTypeAction::Rename { if_exists, pairs }
        } else {
            return Err(self.no_alternative());
        };
        Ok(AlterType { name, if_exists, action })
    }
}
