import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;

import org.apache.cassandra.config.CassandraRelevantProperties;
import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.cql3.UpdateParameters;
import org.apache.cassandra.cql3.statements.ModificationStatement;
import org.apache.cassandra.cql3.statements.schema.CreateTableStatement;
import org.apache.cassandra.cql3.statements.schema.CreateTypeStatement;
import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.RegularAndStaticColumns;
import org.apache.cassandra.db.SerializationHeader;
import org.apache.cassandra.db.Slice;
import org.apache.cassandra.db.context.CounterContext;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.BTreeRow;
import org.apache.cassandra.db.rows.BufferCell;
import org.apache.cassandra.db.rows.EncodingStats;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.dht.Murmur3Partitioner;
import org.apache.cassandra.io.sstable.Descriptor;
import org.apache.cassandra.io.sstable.SSTableTxnWriter;
import org.apache.cassandra.io.sstable.SequenceBasedSSTableId;
import org.apache.cassandra.io.util.File;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.KeyspaceMetadata;
import org.apache.cassandra.schema.KeyspaceParams;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.SchemaTransformations;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.schema.TableMetadataRef;
import org.apache.cassandra.schema.Types;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.utils.CounterId;

/**
 * Writes one sstable, with Cassandra's writer, that has what a list of statements leaves behind.
 *
 *     MakeSstable VERSION SPEC FOLDER         VERSION: me, nb or oa (format BIG), da (format BTI)
 *
 * Statements of SPEC end with a semicolon; a line that begins with two dashes is a comment.
 *
 *     CREATE TYPE ..., CREATE TABLE ...       first, with the name of the keyspace; one table
 *     INSERT, UPDATE, DELETE                  each is applied to what the sstable will have
 *     REPEAT n STATEMENT                      n times; {i} stands for 0 to n-1, {pad} for 200 letters
 *     NOW seconds                             the clock of TTLs, deletions and default timestamps
 *     COUNTER key clustering column shard clock value timestamp
 *                                             one shard of a counter; clustering is - if there is none
 *
 * Cassandra 5 reads the version `me` and has no option to write it. Its writer obeys the version in
 * all places but two, which are corrected in the written files: see `asMe`.
 */
public final class MakeSstable
{
    private static final String PAD = "abcdefghijklmnopqrst".repeat(10);

    private final ClientState client = ClientState.forInternalCalls();
    private final List<CreateTypeStatement.Raw> types = new ArrayList<>();
    private final SortedMap<DecoratedKey, PartitionUpdate> partitions = new TreeMap<>();
    private TableMetadata table;
    /** In seconds. */
    private long now = 1_700_000_000L;

    private void statement(String text)
    {
        String[] words = text.split("\\s+");
        switch (words[0].toUpperCase(Locale.ROOT))
        {
            case "NOW":
                now = Long.parseLong(words[1]);
                break;
            case "CREATE":
                if (words[1].equalsIgnoreCase("TYPE"))
                    types.add(QueryProcessor.parseStatement(text, CreateTypeStatement.Raw.class, "CREATE TYPE"));
                else
                    createTable(text);
                break;
            case "REPEAT":
                String repeated = text.split("\\s+", 3)[2];
                for (int i = 0, end = Integer.parseInt(words[1]); i < end; i++)
                    modify(repeated.replace("{i}", String.valueOf(i)).replace("{pad}", PAD));
                break;
            case "COUNTER":
                count(words[1], words[2], words[3], Integer.parseInt(words[4]), Long.parseLong(words[5]), Long.parseLong(words[6]), Long.parseLong(words[7]));
                break;
            default:
                modify(text);
        }
    }

    private void createTable(String text)
    {
        CreateTableStatement.Raw parsed = QueryProcessor.parseStatement(text, CreateTableStatement.Raw.class, "CREATE TABLE");
        Types.RawBuilder raw = Types.rawBuilder(parsed.keyspace());
        types.forEach(type -> type.addToRawBuilder(raw));
        Types known = raw.build();
        KeyspaceMetadata keyspace = KeyspaceMetadata.create(parsed.keyspace(), KeyspaceParams.simple(1));
        Schema.instance.transform(SchemaTransformations.addKeyspace(keyspace, true));
        Schema.instance.transform(SchemaTransformations.addTypes(known, true));
        table = parsed.prepare(client).builder(known).build();
        Schema.instance.transform(SchemaTransformations.addTable(table, true));
    }

    private void add(PartitionUpdate update)
    {
        partitions.merge(update.partitionKey(), update, (one, other) -> PartitionUpdate.merge(List.of(one, other)));
    }

    private void modify(String text)
    {
        ModificationStatement.Parsed parsed = QueryProcessor.parseStatement(text, ModificationStatement.Parsed.class, "INSERT, UPDATE or DELETE");
        ModificationStatement statement = parsed.prepare(client);
        QueryOptions options = QueryOptions.forInternalCalls(List.of());
        long timestamp = statement.getTimestamp(now * 1_000_000, options);
        UpdateParameters parameters = new UpdateParameters(table, statement.updatedColumns(), client, options, timestamp, now, statement.getTimeToLive(options), Map.of());
        for (ByteBuffer key : statement.buildPartitionKeyNames(options, client))
        {
            PartitionUpdate.Builder update = new PartitionUpdate.Builder(table, table.partitioner.decorateKey(key), statement.updatedColumns(), 1);
            if (statement.hasSlices())
                for (Slice slice : statement.createSlices(options))
                    statement.addUpdateForKey(update, slice, parameters);
            else
                for (Clustering<?> clustering : statement.createClustering(options, client))
                    statement.addUpdateForKey(update, clustering, parameters);
            add(update.build());
        }
    }

    private void count(String key, String clustering, String name, int shard, long clock, long value, long timestamp)
    {
        ColumnMetadata column = table.getColumn(new ColumnIdentifier(name, true));
        Clustering<?> place = column.isStatic() ? Clustering.STATIC_CLUSTERING
                            : clustering.equals("-") ? Clustering.EMPTY
                            : Clustering.make(table.comparator.subtype(0).fromString(clustering));
        Row.Builder row = BTreeRow.unsortedBuilder();
        row.newRow(place);
        row.addCell(BufferCell.live(column, timestamp, CounterContext.instance().createGlobal(CounterId.fromInt(shard), clock, value)));
        DecoratedKey partition = table.partitioner.decorateKey(table.partitionKeyType.fromString(key));
        PartitionUpdate.Builder update = new PartitionUpdate.Builder(table, partition, RegularAndStaticColumns.of(column), 1);
        update.add(row.build());
        add(update.build());
    }

    /** The columns that occur, and the least of all timestamps, deletion times and TTLs. */
    private SerializationHeader header()
    {
        RegularAndStaticColumns columns = RegularAndStaticColumns.NONE;
        EncodingStats.Collector least = new EncodingStats.Collector();
        for (PartitionUpdate update : partitions.values())
        {
            EncodingStats stats = update.stats();
            columns = columns.mergeTo(update.columns());
            if (stats.minTimestamp != EncodingStats.NO_STATS.minTimestamp)
                least.updateTimestamp(stats.minTimestamp);
            if (stats.minLocalDeletionTime != EncodingStats.NO_STATS.minLocalDeletionTime)
                least.updateLocalDeletionTime(stats.minLocalDeletionTime);
            least.updateTTL(stats.minTTL);
        }
        return new SerializationHeader(true, table, columns, least.get());
    }

    private void write(String version, Path folder) throws IOException
    {
        Files.createDirectories(folder);
        String format = version.startsWith("d") ? "bti" : "big";
        Descriptor descriptor = new Descriptor(version, new File(folder), table.keyspace, table.name, new SequenceBasedSSTableId(1), DatabaseDescriptor.getSSTableFormats().get(format));
        try (SSTableTxnWriter writer = SSTableTxnWriter.create(TableMetadataRef.forOfflineTools(table), descriptor, partitions.size(), 0, null, false, header(), List.of(), null))
        {
            partitions.values().forEach(update -> writer.append(update.unfilteredIterator()));
            writer.finish(false);
        }
        if (version.equals("me"))
            asMe(folder, descriptor.baseFile().name());
        System.out.println(partitions.size() + " partitions in " + descriptor.baseFile());
    }

    /**
     * `me` has the words of the Bloom filter in the other byte order, and its CompressionInfo.db has
     * no field for the greatest length of a compressed chunk.
     */
    private static void asMe(Path folder, String base) throws IOException
    {
        Path filter = folder.resolve(base + "-Filter.db");
        if (Files.exists(filter))
        {
            // The number of hashes and the number of words come first.
            ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(filter));
            for (int at = 8; at + 8 <= bytes.capacity(); at += 8)
                bytes.putLong(at, Long.reverseBytes(bytes.getLong(at)));
            Files.write(filter, bytes.array());
        }
        Path compression = folder.resolve(base + "-CompressionInfo.db");
        if (Files.exists(compression))
        {
            // The compressor's name, its options, the length of a chunk: then comes the field.
            ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(compression));
            skipText(bytes);
            for (int texts = 2 * bytes.getInt(); texts > 0; texts--)
                skipText(bytes);
            bytes.getInt();
            ByteBuffer shorter = ByteBuffer.allocate(bytes.capacity() - 4);
            shorter.put(bytes.array(), 0, bytes.position());
            shorter.put(bytes.array(), bytes.position() + 4, shorter.remaining());
            Files.write(compression, shorter.array());
        }
    }

    private static void skipText(ByteBuffer bytes)
    {
        int length = bytes.getShort();
        bytes.position(bytes.position() + length);
    }

    /** The statements of a spec. No text in them may have a semicolon. */
    private static List<String> statements(Path spec) throws IOException
    {
        StringBuilder text = new StringBuilder();
        // Only line feeds end a line: a literal may have any other character.
        for (String line : Files.readString(spec).split("\n"))
            if (!line.strip().startsWith("--"))
                text.append(line).append('\n');
        List<String> statements = new ArrayList<>();
        for (String statement : text.toString().split(";"))
            if (!statement.isBlank())
                statements.add(statement.strip());
        return statements;
    }

    public static void main(String[] arguments)
    {
        int status = 1;
        try
        {
            CassandraRelevantProperties.FORCE_LOAD_LOCAL_KEYSPACES.setBoolean(true);
            DatabaseDescriptor.clientInitialization(false);
            DatabaseDescriptor.setPartitionerUnsafe(Murmur3Partitioner.instance);
            MakeSstable made = new MakeSstable();
            statements(Path.of(arguments[1])).forEach(made::statement);
            made.write(arguments[0], Path.of(arguments[2]));
            status = 0;
        }
        catch (Throwable thrown)
        {
            thrown.printStackTrace();
        }
        System.out.flush();
        // Threads of Cassandra would keep the process alive.
        Runtime.getRuntime().halt(status);
    }
}
