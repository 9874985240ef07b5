/* Variables that a library does not export. The linker may store "count" as the end of "account". */
static volatile int count = 41;
static volatile int account = 42;

int exported(void) { return count; }
int another(void) { return account; }
