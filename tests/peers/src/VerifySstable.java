import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.cassandra.config.CassandraRelevantProperties;
import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.db.ColumnFamilyStore;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.Directories;
import org.apache.cassandra.db.Keyspace;
import org.apache.cassandra.db.SerializationHeader;
import org.apache.cassandra.db.Slice;
import org.apache.cassandra.db.Slices;
import org.apache.cassandra.db.filter.ColumnFilter;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.db.marshal.CompositeType;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.db.rows.Unfiltered;
import org.apache.cassandra.db.rows.UnfilteredRowIterator;
import org.apache.cassandra.io.sstable.Component;
import org.apache.cassandra.io.sstable.Descriptor;
import org.apache.cassandra.io.sstable.ISSTableScanner;
import org.apache.cassandra.io.sstable.IVerifier;
import org.apache.cassandra.io.sstable.KeyReader;
import org.apache.cassandra.io.sstable.SSTableReadsListener;
import org.apache.cassandra.io.sstable.format.FilterComponent;
import org.apache.cassandra.io.sstable.format.SSTableReader;
import org.apache.cassandra.io.sstable.format.StatsComponent;
import org.apache.cassandra.io.sstable.format.TOCComponent;
import org.apache.cassandra.io.sstable.metadata.StatsMetadata;
import org.apache.cassandra.io.util.File;
import org.apache.cassandra.schema.KeyspaceMetadata;
import org.apache.cassandra.schema.KeyspaceParams;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.SchemaTransformations;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.schema.TableMetadataRef;
import org.apache.cassandra.schema.Tables;
import org.apache.cassandra.utils.FBUtilities;
import org.apache.cassandra.utils.IFilter;
import org.apache.cassandra.utils.OutputHandler;

/**
 * Reads one sstable with Cassandra's code in every way, and says where two ways differ.
 *
 *     VerifySstable PATH-OF-DATA [--rows N]
 *
 * The table is rebuilt from the header in Statistics.db; its columns of keys get invented names.
 * First Cassandra's own verifier runs, in its extended mode. Then follow checks that it leaves out:
 *
 *   keys         the index is in order, the filter has each key, and a look-up of each key leads to
 *                the position that the index has
 *   partitions   Data.db, read from its beginning, has the partitions of the index
 *   rows         a partition has the same rows read backwards, and a slice that selects one row
 *                finds it, for up to N (2000) rows of a partition: large partitions have an index
 *   statistics   the counts in Statistics.db; a difference is printed as NOTE and is no failure
 *
 * Each problem is a line that begins with PROBLEM. Exit status 0 if there is none.
 */
public final class VerifySstable
{
    private static final String KEYSPACE = "ks", TABLE = "tbl";

    private final Descriptor descriptor;
    private final TableMetadata table;
    private final SSTableReader reader;
    private final ColumnFamilyStore store;
    private final int sample;
    private int problems;
    private long rowCount;

    private VerifySstable(File data, int sample) throws Exception
    {
        this.sample = sample;
        descriptor = Descriptor.fromFileWithComponent(data, KEYSPACE, TABLE).left;
        table = tableOfHeader();
        KeyspaceMetadata keyspace = KeyspaceMetadata.create(KEYSPACE, KeyspaceParams.simple(1), Tables.of(table));
        Schema.instance.transform(SchemaTransformations.addKeyspace(keyspace, true));
        Directories place = new Directories(table, Set.of(new Directories.DataDirectory(descriptor.directory)));
        store = ColumnFamilyStore.createColumnFamilyStore(Keyspace.openWithoutSSTables(KEYSPACE), TABLE, TableMetadataRef.forOfflineTools(table), place, false, false, true);
        Set<Component> components = new HashSet<>(TOCComponent.loadTOC(descriptor, false));
        for (Component component : components)
            check(descriptor.fileFor(component).exists(), "the TOC has %s, which does not exist", component.name());
        reader = SSTableReader.openNoValidation(descriptor, components, store);
    }

    private void check(boolean holds, String otherwise, Object... values)
    {
        if (holds)
            return;
        problems++;
        System.out.printf("PROBLEM " + otherwise + "%n", values);
    }

    private interface Part
    {
        void run() throws Exception;
    }

    /** Runs a part of the checks. What it throws is a problem, and the other parts run nevertheless. */
    private void part(String name, Part part)
    {
        try
        {
            part.run();
        }
        catch (Throwable thrown)
        {
            StringBuilder text = new StringBuilder(name).append(": ").append(thrown);
            Throwable cause = thrown;
            while (cause.getCause() != null)
            {
                cause = cause.getCause();
                text.append(", because of ").append(cause);
            }
            for (StackTraceElement frame : List.of(cause.getStackTrace()).subList(0, Math.min(4, cause.getStackTrace().length)))
                text.append("\n        ").append(frame);
            check(false, "%s", text);
        }
    }

    private TableMetadata tableOfHeader() throws Exception
    {
        SerializationHeader.Component header = StatsComponent.load(descriptor).serializationHeader();
        TableMetadata.Builder builder = TableMetadata.builder(KEYSPACE, TABLE).partitioner(FBUtilities.newPartitioner(descriptor));
        AbstractType<?> key = header.getKeyType();
        List<AbstractType<?>> keys = key instanceof CompositeType ? ((CompositeType) key).types : List.of(key);
        int number = 0;
        for (AbstractType<?> type : keys)
            builder.addPartitionKeyColumn("key_" + number++, type);
        for (AbstractType<?> type : header.getClusteringTypes())
            builder.addClusteringColumn("clustering_" + number++, type);
        boolean counters = false;
        for (Map.Entry<java.nio.ByteBuffer, AbstractType<?>> column : header.getStaticColumns().entrySet())
        {
            builder.addStaticColumn(name(column.getKey()), column.getValue());
            counters |= column.getValue().isCounter();
        }
        for (Map.Entry<java.nio.ByteBuffer, AbstractType<?>> column : header.getRegularColumns().entrySet())
        {
            builder.addRegularColumn(name(column.getKey()), column.getValue());
            counters |= column.getValue().isCounter();
        }
        return builder.isCounter(counters).build();
    }

    private static ColumnIdentifier name(java.nio.ByteBuffer bytes)
    {
        return ColumnIdentifier.getInterned(bytes, org.apache.cassandra.db.marshal.UTF8Type.instance);
    }

    private void cassandrasVerifier() throws Exception
    {
        IVerifier.Options options = IVerifier.options().extendedVerification(true).checkVersion(false).checkOwnsTokens(false)
                                             .mutateRepairStatus(false).invokeDiskFailurePolicy(false).build();
        try (IVerifier verifier = reader.getVerifier(store, new OutputHandler.SystemOutput(false, false), true, options))
        {
            verifier.verify();
        }
    }

    /** The keys of the index, each checked. */
    private List<DecoratedKey> keys() throws Exception
    {
        List<DecoratedKey> keys = new ArrayList<>();
        IFilter filter = FilterComponent.load(descriptor);
        try (KeyReader index = reader.keyReader())
        {
            DecoratedKey before = null;
            boolean more = true;
            while (more)
            {
                DecoratedKey key = reader.decorateKey(index.key().duplicate());
                long position = reader.getPosition(key, SSTableReader.Operator.EQ);
                check(before == null || before.compareTo(key) < 0, "the index has %s after %s", key, before);
                check(filter == null || filter.isPresent(key), "the filter does not have %s", key);
                check(position == index.dataPosition(), "a look-up of %s leads to %d, the index to %d", key, position, index.dataPosition());
                keys.add(key);
                before = key;
                more = index.advance();
            }
        }
        finally
        {
            if (filter != null)
                filter.close();
        }
        check(keys.get(0).equals(reader.getFirst()), "the first key is %s, not %s", keys.get(0), reader.getFirst());
        check(keys.get(keys.size() - 1).equals(reader.getLast()), "the last key is %s, not %s", keys.get(keys.size() - 1), reader.getLast());
        return keys;
    }

    private void partitions(List<DecoratedKey> keys)
    {
        List<DecoratedKey> read = new ArrayList<>();
        try (ISSTableScanner scanner = reader.getScanner())
        {
            while (scanner.hasNext())
            {
                try (UnfilteredRowIterator partition = scanner.next())
                {
                    read.add(partition.partitionKey());
                    partition.forEachRemaining(each -> {});
                }
            }
        }
        check(read.equals(keys), "Data.db has the partitions %s, the index has %s", brief(read), brief(keys));
    }

    private static String brief(List<?> items)
    {
        return items.size() + " " + items.subList(0, Math.min(10, items.size()));
    }

    /** What a partition has within some slices; counts static rows, if asked to. */
    private List<Unfiltered> read(DecoratedKey key, Slices slices, boolean reversed, boolean count)
    {
        List<Unfiltered> found = new ArrayList<>();
        try (UnfilteredRowIterator partition = reader.rowIterator(key, slices, ColumnFilter.all(table), reversed, SSTableReadsListener.NOOP_LISTENER))
        {
            if (count && !partition.staticRow().isEmpty())
                rowCount++;
            partition.forEachRemaining(found::add);
        }
        return found;
    }

    private static List<Row> rowsOf(List<Unfiltered> found)
    {
        List<Row> rows = new ArrayList<>();
        for (Unfiltered each : found)
            if (each.isRow())
                rows.add((Row) each);
        return rows;
    }

    private void rows(DecoratedKey key)
    {
        List<Unfiltered> all = read(key, Slices.ALL, false, true);
        for (int i = 1; i < all.size(); i++)
        {
            Unfiltered one = all.get(i - 1), next = all.get(i);
            check(table.comparator.compare(one.clustering(), next.clustering()) < 0, "%s has %s before %s", key, one.toString(table), next.toString(table));
        }
        List<Row> forward = rowsOf(all);
        rowCount += forward.size();
        // Tombstones of ranges may be joined when they are read backwards, so only rows are compared.
        List<Row> backward = rowsOf(read(key, Slices.ALL, true, false));
        Collections.reverse(backward);
        check(backward.equals(forward), "%s has %d rows, and %d or others when read backwards", key, forward.size(), backward.size());
        if (table.comparator.size() == 0)
            return;
        int every = Math.max(1, forward.size() / Math.max(1, sample));
        for (int i = 0; i < forward.size(); i += every)
        {
            Row row = forward.get(i);
            Slices slices = Slices.with(table.comparator, Slice.make(row.clustering()));
            for (boolean reversed : new boolean[]{ false, true })
            {
                List<Row> found = rowsOf(read(key, slices, reversed, false));
                check(found.equals(List.of(row)), "%s: a slice of %s (reversed: %s) finds %d rows, or another", key, row.clustering().toString(table), reversed, found.size());
            }
        }
    }

    private static void compare(String what, long said, long counted)
    {
        if (said != counted)
            System.out.printf("NOTE Statistics.db has %d %s, %d were counted%n", said, what, counted);
    }

    private int run()
    {
        part("verifier", this::cassandrasVerifier);
        part("keys and rows", () -> {
            List<DecoratedKey> keys = keys();
            part("partitions", () -> partitions(keys));
            for (DecoratedKey key : keys)
                part("rows of " + key, () -> rows(key));
            StatsMetadata stats = reader.getSSTableMetadata();
            compare("rows", stats.totalRows, rowCount);
            compare("partitions", stats.estimatedPartitionSize.count(), keys.size());
            System.out.printf("%d partitions, %d rows%n", keys.size(), rowCount);
        });
        System.out.println(problems == 0 ? "OK" : problems + " problems");
        return problems == 0 ? 0 : 1;
    }

    public static void main(String[] arguments)
    {
        int status = 1;
        try
        {
            CassandraRelevantProperties.FORCE_LOAD_LOCAL_KEYSPACES.setBoolean(true);
            DatabaseDescriptor.toolInitialization();
            DatabaseDescriptor.createAllDirectories();
            int sample = arguments.length == 3 && arguments[1].equals("--rows") ? Integer.parseInt(arguments[2]) : 2000;
            status = new VerifySstable(new File(arguments[0]), sample).run();
        }
        catch (Throwable thrown)
        {
            System.out.println("PROBLEM it cannot be opened: " + thrown);
            thrown.printStackTrace();
        }
        System.out.flush();
        // Threads of Cassandra would keep the process alive.
        Runtime.getRuntime().halt(status);
    }
}
