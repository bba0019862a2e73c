package shop;

import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.config.DefaultDriverOption;
import java.math.BigDecimal;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.IntStream;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.autoconfigure.cassandra.DriverConfigLoaderBuilderCustomizer;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.data.cassandra.core.AsyncCassandraTemplate;
import org.springframework.data.cassandra.core.CassandraTemplate;
import org.springframework.data.cassandra.core.InsertOptions;
import org.springframework.data.cassandra.core.query.CassandraPageRequest;
import org.springframework.data.cassandra.core.query.Criteria;
import org.springframework.data.cassandra.core.query.Query;
import org.springframework.data.cassandra.core.query.Update;
import org.springframework.data.domain.Slice;
import org.springframework.data.domain.Sort;

/** A shop on Spring Boot and Spring Data for Apache Cassandra, whose orders are stored while a node is killed. */
@SpringBootApplication
public class Shop {
  static final int ORDERS = 120;
  static int failed = 0;

  interface Check {
    void run() throws Exception;
  }

  static void check(String name, Check what) {
    try {
      what.run();
      System.out.println("ok " + name);
    } catch (Throwable error) {
      failed++;
      error.printStackTrace();
      System.out.println("FAILED " + name + ": " + error.toString().replace('\n', ' '));
    }
  }

  static void same(Object found, Object expected, String what) {
    if (!found.equals(expected)) throw new AssertionError(what + ": " + found + " instead of " + expected);
  }

  /** All statements of this shop may be sent again: none of them is a condition, a counter or an append to a list. */
  @Bean
  DriverConfigLoaderBuilderCustomizer idempotent() {
    return builder -> builder
        .withBoolean(DefaultDriverOption.REQUEST_DEFAULT_IDEMPOTENCE, true)
        .withInt(DefaultDriverOption.RECONNECTION_BASE_DELAY, 200)
        .withInt(DefaultDriverOption.RECONNECTION_MAX_DELAY, 1000);
  }

  static Order order(String customer, int number, String part) {
    Order order = new Order(new OrderKey(customer, number, part));
    order.uid = new UUID(customer.hashCode(), number);
    order.total = new BigDecimal(number).movePointLeft(2);
    order.at = Instant.ofEpochMilli(1_700_000_000_000L + number);
    order.day = LocalDate.of(2024, 1, 1).plusDays(number);
    order.state = number % 3 == 0 ? Order.State.OPEN : Order.State.SENT;
    order.tags = Set.of("t" + number % 4, "all");
    order.amounts = List.of(number, number * 2);
    order.notes = Map.of("part", part);
    order.address = new Address("Via Messina", number, Set.of("home"));
    order.note = "note " + number + " ß";
    return order;
  }

  static void compare(Order found, Order expected) {
    for (var field : Order.class.getDeclaredFields()) {
      try {
        if (!java.lang.reflect.Modifier.isStatic(field.getModifiers())) same(field.get(found), field.get(expected), field.getName() + " of order " + expected.key.number);
      } catch (IllegalAccessException error) {
        throw new AssertionError(error);
      }
    }
  }

  static List<Integer> numbers(Iterable<Order> orders) {
    List<Integer> numbers = new ArrayList<>();
    for (Order order : orders) numbers.add(order.key.number);
    return numbers;
  }

  static List<Integer> down(int from, int to) {
    return IntStream.rangeClosed(to, from).map(n -> from + to - n).boxed().toList();
  }

  static void run(ConfigurableApplicationContext context) {
    Orders orders = context.getBean(Orders.class);
    CassandraTemplate template = context.getBean(CassandraTemplate.class);
    check("schema", () -> {
      same(context.getBean(CqlSession.class).refreshSchema().getKeyspace("shop").get().getTables().size(), 1, "tables");
      same(context.getBean(CqlSession.class).getMetadata().getKeyspace("shop").get().getUserDefinedTypes().size(), 1, "user-defined types");
    });
    check("repository", () -> {
      List<Order> all = new ArrayList<>();
      for (int n = 0; n < ORDERS; n++) all.add(order("calm", n, "a"));
      orders.saveAll(all);
      for (int n = 0; n < ORDERS; n += 7) compare(orders.findById(new OrderKey("calm", n, "a")).get(), order("calm", n, "a"));
      same(orders.findById(new OrderKey("calm", ORDERS, "a")).isPresent(), false, "an order that was never stored");
      same(orders.count(), (long) ORDERS, "count");
      same(orders.existsById(new OrderKey("calm", 3, "a")), true, "existsById");
      Order changed = order("calm", 3, "a");
      changed.note = "changed";
      changed.notes = null;
      orders.save(changed);
      Order found = orders.findById(changed.key).get();
      same(found.note, "changed", "note");
      if (found.notes != null && !found.notes.isEmpty()) throw new AssertionError("notes are not removed: " + found.notes);
      orders.deleteById(changed.key);
      same(orders.findByKeyCustomer("calm").size(), ORDERS - 1, "after a deletion");
      orders.save(order("calm", 3, "a"));
    });
    check("paging", () -> {
      List<Integer> seen = new ArrayList<>();
      Slice<Order> slice = orders.findByKeyCustomer("calm", CassandraPageRequest.first(25));
      int pages = 1;
      seen.addAll(numbers(slice));
      while (slice.hasNext()) {
        slice = orders.findByKeyCustomer("calm", slice.nextPageable());
        seen.addAll(numbers(slice));
        pages++;
      }
      same(seen, down(ORDERS - 1, 0), "the orders of all pages");
      if (pages < 5) throw new AssertionError(pages + " pages");
      try (var stream = orders.streamByKeyCustomer("calm")) {
        same(stream.count(), (long) ORDERS, "streamed");
      }
    });
    check("derived", () -> {
      same(numbers(orders.findByKeyCustomerAndKeyNumberBetween("calm", 10, 13)), List.of(12, 11), "between");
      same(numbers(orders.findByKeyCustomerAndKeyNumberGreaterThanEqualOrderByKeyNumberAsc("calm", ORDERS - 2)), List.of(ORDERS - 2, ORDERS - 1), "ordered");
      same(orders.findByKeyCustomerAndState("calm", Order.State.OPEN).size(), ORDERS / 3, "by state");
      same(orders.findByKeyCustomerAndTagsContains("calm", "t1").size(), ORDERS / 4, "by tag");
      same(orders.countByKeyCustomer("calm"), (long) ORDERS, "countBy");
      same(orders.existsByKeyCustomerAndKeyNumber("calm", 5), true, "existsBy");
      same(orders.last("calm"), ORDERS - 1, "a query of its own");
      orders.deleteByKeyCustomerAndKeyNumber("calm", 5);
      same(orders.existsByKeyCustomerAndKeyNumber("calm", 5), false, "deleteBy");
      orders.save(order("calm", 5, "a"));
    });
    check("template", () -> {
      template.insert(order("template", 1, "a"), InsertOptions.builder().ttl(500).withInsertNulls().build());
      Query one = Query.query(Criteria.where("customer").is("template"), Criteria.where("number").is(1), Criteria.where("part").is("a"));
      template.update(one, Update.empty().set("note", "by template").addTo("tags").append("more"), Order.class);
      Order found = template.selectOne(one, Order.class);
      same(found.note, "by template", "note");
      same(found.tags, Set.of("t1", "all", "more"), "tags");
      Query range = Query.query(Criteria.where("customer").is("calm"), Criteria.where("number").lt(10)).sort(Sort.by("number")).limit(3);
      same(numbers(template.select(range, Order.class)), List.of(0, 1, 2), "a range");
      Query some = Query.query(Criteria.where("customer").in("calm", "template"));
      same(template.count(some, Order.class), (long) ORDERS + 1, "in");
      same(template.getCqlOperations().queryForObject("SELECT ttl(total) FROM orders WHERE customer = 'template'", Integer.class) > 400, true, "ttl");
    });
    check("batch", () -> {
      var batch = template.batchOps();
      for (int n = 0; n < 10; n++) batch.insert(order("batch", n, "a"));
      batch.delete(order("calm", 0, "a"));
      same(batch.execute().wasApplied(), true, "applied");
      same(numbers(orders.findByKeyCustomer("batch")), down(9, 0), "orders of the batch");
      orders.save(order("calm", 0, "a"));
    });
    check("async", () -> {
      AsyncCassandraTemplate async = new AsyncCassandraTemplate(context.getBean(CqlSession.class));
      var futures = IntStream.range(0, 100).mapToObj(n -> async.insert(order("async", n, "b"))).toList();
      for (var future : futures) future.get(60, TimeUnit.SECONDS);
      same(orders.countByKeyCustomer("async"), 100L, "orders");
    });
    check("kill_middle", () -> {
      AtomicBoolean back = new AtomicBoolean();
      int n = 0;
      for (; !back.get() || n < 300; n++) {
        Order one = order("storm", n, "a");
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (true) {
          try {
            orders.save(one);
            if (n % 10 == 0) compare(orders.findById(one.key).get(), one);
            break;
          } catch (org.springframework.dao.DataAccessException error) {
            System.err.println("order " + n + ": " + error);
            if (System.nanoTime() > until) throw error;
            Thread.sleep(100);
          }
        }
        if (n == 100) {
          System.out.println("kill?");
          new Thread(() -> {
            try {
              System.in.read();
            } catch (java.io.IOException gone) {
              // The runner has ended: so does this.
            }
            back.set(true);
          }).start();
        }
      }
      List<Order> found = orders.findByKeyCustomer("storm");
      same(numbers(found), down(n - 1, 0), "the orders that were stored");
      for (Order one : found) compare(one, order("storm", one.key.number, "a"));
    });
  }

  public static void main(String[] arguments) {
    String dc = System.getenv("DATACENTER");
    String[] hosts = System.getenv("HOSTS").split(",");
    try (CqlSession session = CqlSession.builder().addContactPoint(new java.net.InetSocketAddress(hosts[0], 9042)).withLocalDatacenter(dc).build()) {
      session.execute("CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', '" + dc + "': 3}");
    }
    SpringApplication application = new SpringApplication(Shop.class);
    application.setWebApplicationType(WebApplicationType.NONE);
    Map<String, Object> settings = new HashMap<>();
    settings.put("spring.cassandra.contact-points", System.getenv("HOSTS"));
    settings.put("spring.cassandra.local-datacenter", dc);
    settings.put("spring.cassandra.keyspace-name", "shop");
    settings.put("spring.cassandra.schema-action", "create-if-not-exists");
    settings.put("spring.cassandra.request.consistency", "quorum");
    settings.put("spring.cassandra.request.timeout", "15s");
    settings.put("spring.cassandra.connection.connect-timeout", "10s");
    settings.put("spring.cassandra.connection.init-query-timeout", "10s");
    settings.put("logging.level.root", "warn");
    settings.put("spring.main.banner-mode", "off");
    application.setDefaultProperties(settings);
    try {
      run(application.run());
    } catch (Throwable error) {
      error.printStackTrace();
      failed++;
    }
    System.out.flush();
    Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
  }
}
