import com.fasterxml.jackson.annotation.JsonCreator;
import com.fasterxml.jackson.annotation.JsonProperty;
import java.time.Duration;
import java.util.Set;
import org.apache.pekko.actor.typed.ActorRef;
import org.apache.pekko.actor.typed.Behavior;
import org.apache.pekko.actor.typed.SupervisorStrategy;
import org.apache.pekko.persistence.typed.PersistenceId;
import org.apache.pekko.persistence.typed.javadsl.CommandHandler;
import org.apache.pekko.persistence.typed.javadsl.Effect;
import org.apache.pekko.persistence.typed.javadsl.EventHandler;
import org.apache.pekko.persistence.typed.javadsl.EventSourcedBehavior;
import org.apache.pekko.persistence.typed.javadsl.RetentionCriteria;

/** An account whose state is the sum of its events. A deposit that was stored already is answered and not stored again. */
class Account extends EventSourcedBehavior<Account.Command, Account.Deposited, Account.Balance> {
  interface Stored {}

  sealed interface Command {}

  record Deposit(int number, long amount, ActorRef<Balance> to) implements Command {}

  record Ask(ActorRef<Balance> to) implements Command {}

  record Stop() implements Command {}

  static final class Deposited implements Stored {
    final int number;
    final long amount;

    @JsonCreator
    Deposited(@JsonProperty("number") int number, @JsonProperty("amount") long amount) {
      this.number = number;
      this.amount = amount;
    }

    @JsonProperty
    public int getNumber() {
      return number;
    }

    @JsonProperty
    public long getAmount() {
      return amount;
    }
  }

  static final class Balance implements Stored {
    final int last;
    final long sum;

    @JsonCreator
    Balance(@JsonProperty("last") int last, @JsonProperty("sum") long sum) {
      this.last = last;
      this.sum = sum;
    }

    @JsonProperty
    public int getLast() {
      return last;
    }

    @JsonProperty
    public long getSum() {
      return sum;
    }
  }

  private final boolean snapshots;

  private Account(String id, boolean snapshots) {
    super(PersistenceId.ofUniqueId(id), SupervisorStrategy.restartWithBackoff(Duration.ofMillis(200), Duration.ofSeconds(1), 0.1));
    this.snapshots = snapshots;
  }

  static Behavior<Command> create(String id, boolean snapshots) {
    return new Account(id, snapshots);
  }

  @Override
  public Balance emptyState() {
    return new Balance(0, 0);
  }

  @Override
  public CommandHandler<Command, Deposited, Balance> commandHandler() {
    return newCommandHandlerBuilder()
        .forAnyState()
        .onCommand(Deposit.class, (state, command) -> {
          if (command.number() <= state.last) return Effect().none().thenReply(command.to(), same -> same);
          return Effect().persist(new Deposited(command.number(), command.amount())).thenReply(command.to(), now -> now);
        })
        .onCommand(Ask.class, (state, command) -> Effect().reply(command.to(), state))
        .onCommand(Stop.class, (state, command) -> Effect().stop())
        .build();
  }

  @Override
  public EventHandler<Balance, Deposited> eventHandler() {
    return (state, event) -> new Balance(event.number, state.sum + event.amount);
  }

  @Override
  public Set<String> tagsFor(Deposited event) {
    return event.number % 2 == 0 ? Set.of("even", "all") : Set.of("all");
  }

  @Override
  public RetentionCriteria retentionCriteria() {
    return snapshots ? RetentionCriteria.snapshotEvery(20, 2).withDeleteEventsOnSnapshot() : RetentionCriteria.disabled();
  }
}
