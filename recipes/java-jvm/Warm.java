import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.concurrent.atomic.AtomicInteger;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.handler.AbstractHandler;

/** A server whose answers tell how warm its JVM is: put the program to keep warm in its place. */
public class Warm extends AbstractHandler {
    private final AtomicInteger requests = new AtomicInteger();

    @Override
    public void handle(String target, Request base, HttpServletRequest request, HttpServletResponse response)
            throws IOException {
        response.setContentType("text/plain");
        response.getWriter().printf("pid %d, request %d, %d classes loaded%n", ProcessHandle.current().pid(),
                requests.incrementAndGet(), ManagementFactory.getClassLoadingMXBean().getLoadedClassCount());
        base.setHandled(true);
    }

    public static void main(String[] args) throws Exception {
        Server server = new Server(8080);
        server.setHandler(new Warm());
        server.start();
        server.join();
    }
}
