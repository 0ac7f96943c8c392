// Ends the program if a condition does not hold, and says which.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("%s, line %d: %s: %s\n", __func__, __LINE__, #condition, strerror(errno)); \
            exit(1); \
        } \
    } while (0)
