/* Part of staying.c's extension module, if there is a C++ compiler. */
#include <thread>

extern "C" void start_in_cxx(void (*run)(void)) { std::thread([run] { run(); }).detach(); }
